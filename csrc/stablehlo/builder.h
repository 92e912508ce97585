// Builds one StableHLO program (a module with a single `main`) and prints it as text.
//
// An operation is a free function over `Value`s: it checks the operands' types at the line that
// writes it, infers the result type and appends the operation. A wrong program therefore throws
// `BuildError` where it is written, not when the compiler reads it.
//
// Reference: the StableHLO specification, https://openxla.org/stablehlo/spec
#pragma once

#include <array>
#include <complex>
#include <concepts>
#include <deque>
#include <functional>
#include <stdexcept>
#include <unordered_map>
#include <utility>

#include "stablehlo/types.h"

namespace torch_tpu::stablehlo {

class BuildError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

class Builder;

// A handle to a value of the program under construction. Cheap to copy; valid as long as its
// builder lives. A default-constructed Value stands for "no value".
class Value {
 public:
  Value() = default;
  Value(Builder* builder, int32_t id) : builder_(builder), id_(id) {}

  explicit operator bool() const { return builder_ != nullptr; }
  Builder& builder() const { return *builder_; }
  int32_t id() const { return id_; }
  // Stays valid while operations are appended.
  const TensorType& type() const;
  ElementType dtype() const { return type().dtype; }
  const Dims& dims() const { return type().dims; }
  int64_t dim(int64_t i) const { return type().dims.at(static_cast<size_t>(i)); }
  int64_t rank() const { return type().rank(); }
  int64_t numel() const { return type().numel(); }
  bool operator==(const Value&) const = default;

 private:
  Builder* builder_ = nullptr;
  int32_t id_ = -1;
};

using Values = std::vector<Value>;
// Writes the body of a region: gets the block arguments, returns what the region yields.
using Region = std::function<Values(const Values&)>;

// What is asked of a product of float32 numbers. A TPU multiplies bfloat16 numbers and adds float32
// ones: kDefault is one such pass, kHigh three and kHighest six.
enum class Precision { kDefault, kHigh, kHighest };
struct Float32Products {
  Precision precision = Precision::kHighest;
  bool emulated = false;  // the compiler computes in float32 whatever it is asked for
};

class Builder {
 public:
  explicit Builder(std::string module_name = "torch_tpu");
  Builder(const Builder&) = delete;
  Builder& operator=(const Builder&) = delete;

  // The next argument of main.
  Value parameter(const TensorType& type);
  // Marks that result `result` may reuse the memory of parameter `parameter` (input donation).
  // Both must have the same type.
  void alias(size_t parameter, size_t result);
  // The finished module. Call once.
  std::string finish(const Values& results);

  // How the program's contractions take products of float32: for whoever writes them. Asking is
  // noted, since the program then depends on it.
  void set_float32_products(const Float32Products& products) { float32_products_ = products; }
  const Float32Products& float32_products() {
    float32_products_asked_ = true;
    return float32_products_;
  }
  bool float32_products_asked() const { return float32_products_asked_; }

  // From now on an operation that is there already, outside of regions and with the same operands,
  // is not appended again: it gives the same values.
  void share_equal_operations() { shares_equal_ = true; }

  // What a transpose or a reshape was made of, for whoever would rather read that.
  struct Rearrangement {
    Value operand;
    Dims permutation;  // empty: a reshape
  };
  // Null for the results of other operations.
  const Rearrangement* rearrangement(Value result) const;
  void note_rearrangement(Value result, Rearrangement rearrangement);

  size_t num_parameters() const { return parameters_.size(); }
  bool is_parameter(Value value) const;
  size_t num_operations() const { return num_operations_; }
  const TensorType& type(int32_t id) const { return values_[static_cast<size_t>(id)].type; }

  // Appends a generic operation. `attributes` is the text between { and } ("" for none).
  // A region is the types of its block arguments and the function that writes its body. Values made
  // in a body cannot be used outside of it. The bodies of if_ and while_ may use every value of the
  // enclosing regions; those of other operations (reduce, sort, scatter ...) only constants.
  Values append(std::string_view op, const Values& operands, std::string_view attributes,
                const std::vector<TensorType>& results,
                const std::vector<std::pair<std::vector<TensorType>, Region>>& regions = {});
  Value append1(std::string_view op, const Values& operands, std::string_view attributes,
                const TensorType& result);

 private:
  struct Entry {
    TensorType type;
    bool in_scope = true;
    bool constant = false;
  };

  Value new_value(const TensorType& type);
  // What an operation is known by among those that are shared; empty when it is not to be shared.
  std::string shared_name(std::string_view op, const Values& operands, std::string_view attributes,
                          const std::vector<TensorType>& results) const;
  void check_operands(std::string_view op, const Values& operands) const;
  void append_region(std::string_view op, const std::vector<TensorType>& arguments,
                     const Region& region);
  void indent();

  std::string module_name_;
  std::deque<Entry> values_;         // by value id; a deque so that type() references stay valid
  std::vector<int32_t> parameters_;  // value ids of main's arguments
  std::vector<std::pair<size_t, size_t>> aliases_;
  std::unordered_map<int32_t, Rearrangement> rearrangements_;  // by the result's id
  bool shares_equal_ = false;
  std::unordered_map<std::string, Values> shared_;
  std::string body_;
  size_t num_operations_ = 0;
  Float32Products float32_products_;
  bool float32_products_asked_ = false;
  int depth_ = 0;
  int32_t isolated_from_ = 0;  // smaller ids are outside of the innermost isolated region
  bool finished_ = false;
};

// --- Constants ----------------------------------------------------------------------------------

// One value in every element. The number is given as the widest host type of its kind; it must be
// representable in the element type (floats are rounded; inf and nan are allowed for floats).
Value splat(Builder&, const TensorType&, double);
Value splat(Builder&, const TensorType&, int64_t);
Value splat(Builder&, const TensorType&, uint64_t);
Value splat(Builder&, const TensorType&, bool);
Value splat(Builder&, const TensorType&, std::complex<double>);
template <std::integral T>
  requires(!std::same_as<T, bool> && !std::same_as<T, int64_t> && !std::same_as<T, uint64_t>)
Value splat(Builder& b, const TensorType& type, T value) {
  using Wide = std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>;
  return splat(b, type, static_cast<Wide>(value));
}
// A 0-d constant.
template <typename T>
Value scalar(Builder& b, ElementType dtype, T value) {
  return splat(b, TensorType{dtype, {}}, value);
}
// A constant with the type of `like`.
template <typename T>
Value full_like(Value like, T value) {
  return splat(like.builder(), like.type(), value);
}
// A 1-d s64 (or other integer type) constant; or n-d with dims.
Value constant(Builder&, std::span<const int64_t> values, ElementType dtype = ElementType::kS64);
Value constant(Builder&, std::span<const int64_t> values, const TensorType& type);
Value constant(Builder&, std::span<const double> values, const TensorType& type);
// Any type, from row-major host memory (bool: one byte each).
Value constant_bytes(Builder&, const void* data, const TensorType& type);
Value iota(Builder&, const TensorType&, int64_t dimension);
// The extremes of a type: -inf/+inf for floats (the largest finite numbers where the type has no
// infinity), min/max for integers, false/true for bool.
Value lowest(Builder&, const TensorType&);
Value highest(Builder&, const TensorType&);

// --- Elementwise --------------------------------------------------------------------------------
// Operands of binary operations have the same type. See broadcast_to() and convert().

Value abs(Value);  // complex -> its real type
Value negate(Value);
Value exponential(Value);
Value exponential_minus_one(Value);
Value log(Value);
Value log_plus_one(Value);
Value logistic(Value);
Value sqrt(Value);
Value rsqrt(Value);
Value cbrt(Value);
Value sine(Value);
Value cosine(Value);
Value tan(Value);
Value tanh(Value);
Value floor(Value);
Value ceil(Value);
Value round_nearest_even(Value);
Value round_nearest_afz(Value);
Value sign(Value);
Value not_(Value);
Value popcnt(Value);
Value count_leading_zeros(Value);
Value is_finite(Value);
Value real(Value);
Value imag(Value);
// CHLO (client HLO) functions, expanded by the compiler.
Value erf(Value);
Value erfc(Value);
Value erf_inv(Value);
Value lgamma(Value);
Value digamma(Value);
Value acos(Value);
Value acosh(Value);
Value asin(Value);
Value asinh(Value);
Value atan(Value);
Value atanh(Value);
Value sinh(Value);
Value cosh(Value);
Value bessel_i1e(Value);
Value is_inf(Value);
Value is_pos_inf(Value);
Value is_neg_inf(Value);
Value next_after(Value, Value);
Value polygamma(Value, Value);
Value zeta(Value, Value);

Value add(Value, Value);
Value subtract(Value, Value);
Value multiply(Value, Value);
Value divide(Value, Value);
Value remainder(Value, Value);  // sign of the dividend
Value maximum(Value, Value);
Value minimum(Value, Value);
Value power(Value, Value);
Value atan2(Value, Value);
Value and_(Value, Value);
Value or_(Value, Value);
Value xor_(Value, Value);
Value shift_left(Value, Value);
Value shift_right_arithmetic(Value, Value);
Value shift_right_logical(Value, Value);
Value complex(Value real, Value imag);

enum class Direction { kEq, kNe, kLt, kLe, kGt, kGe };
Value compare(Value, Value, Direction);
inline Value eq(Value a, Value b) { return compare(a, b, Direction::kEq); }
inline Value ne(Value a, Value b) { return compare(a, b, Direction::kNe); }
inline Value lt(Value a, Value b) { return compare(a, b, Direction::kLt); }
inline Value le(Value a, Value b) { return compare(a, b, Direction::kLe); }
inline Value gt(Value a, Value b) { return compare(a, b, Direction::kGt); }
inline Value ge(Value a, Value b) { return compare(a, b, Direction::kGe); }
// pred: bool, of the operands' shape or 0-d.
Value select(Value pred, Value on_true, Value on_false);
Value clamp(Value min, Value operand, Value max);

// Numeric conversion; the value itself when the type is already right. Float to bool is != 0,
// complex to real takes the real part.
Value convert(Value, ElementType);
// Reinterprets bits. Same width: same shape. Narrower target: a trailing dimension appears;
// wider target: the trailing dimension disappears.
Value bitcast_convert(Value, ElementType);
Value reduce_precision(Value, int exponent_bits, int mantissa_bits);

// --- Shape --------------------------------------------------------------------------------------

// `mapping[i]` is the result dimension of operand dimension i.
Value broadcast_in_dim(Value, const Dims& dims, const Dims& mapping);
// NumPy rules: dimensions align from the right, size 1 stretches.
Value broadcast_to(Value, const Dims& dims);
// The NumPy broadcast of several shapes; throws BuildError when they do not fit.
Dims broadcast_shapes(const std::vector<Dims>& shapes);
Value reshape(Value, const Dims& dims);
Value flatten(Value);  // to 1-d
// result dimension i is operand dimension permutation[i].
Value transpose(Value, const Dims& permutation);
Value slice(Value, const Dims& start, const Dims& limit, const Dims& strides = {});
// A slice of one dimension.
Value slice_dim(Value, int64_t dimension, int64_t start, int64_t limit, int64_t stride = 1);
// Start indices: one 0-d integer per dimension.
Value dynamic_slice(Value, const Values& start, const Dims& sizes);
Value dynamic_update_slice(Value operand, Value update, const Values& start);
// Edge padding may be negative (crops); interior is >= 0. padding_value is 0-d.
Value pad(Value, Value padding_value, const Dims& low, const Dims& high, const Dims& interior = {});
Value concatenate(const Values&, int64_t dimension);
Value reverse(Value, const Dims& dimensions);
// Inserts a size-1 dimension at `dimension`.
Value expand_dim(Value, int64_t dimension);
// Removes dimension `dimension`, which has size 1.
Value squeeze_dim(Value, int64_t dimension);

// --- Indexing -----------------------------------------------------------------------------------

struct GatherDims {
  Dims offset_dims;
  Dims collapsed_slice_dims;
  Dims operand_batching_dims = {};
  Dims start_indices_batching_dims = {};
  Dims start_index_map;
  int64_t index_vector_dim = 0;
};
Value gather(Value operand, Value start_indices, const GatherDims&, const Dims& slice_sizes,
             bool indices_are_sorted = false);

struct ScatterDims {
  Dims update_window_dims;
  Dims inserted_window_dims;
  Dims input_batching_dims = {};
  Dims scatter_indices_batching_dims = {};
  Dims scatter_dims_to_operand_dims;
  int64_t index_vector_dim = 0;
};
// `combine` gets (current, update) as 0-d values.
Value scatter(Value operand, Value indices, Value updates, const ScatterDims&,
              const Region& combine, bool indices_are_sorted = false, bool unique_indices = false);

// --- Reductions, windows, sorting ---------------------------------------------------------------

// `body` gets (accumulators..., elements...) as 0-d values and returns the new accumulators.
Values reduce(const Values& operands, const Values& init, const Dims& dimensions,
              const Region& body);
// The usual ones; the reduced dimensions disappear. The accumulation type is the operand's.
Value reduce_sum(Value, const Dims& dimensions);
Value reduce_prod(Value, const Dims& dimensions);
Value reduce_max(Value, const Dims& dimensions);  // NaN wins, as in PyTorch
Value reduce_min(Value, const Dims& dimensions);
Value reduce_and(Value, const Dims& dimensions);
Value reduce_or(Value, const Dims& dimensions);

struct Window {
  Dims dimensions;
  Dims strides = {};         // default 1
  Dims base_dilations = {};  // default 1
  Dims window_dilations = {};
  Dims padding_low = {};  // default 0
  Dims padding_high = {};
};
Values reduce_window(const Values& operands, const Values& init, const Window&, const Region& body);
// `select_body` gets (a, b) and returns bool; `scatter_body` gets (a, b) and returns a value.
Value select_and_scatter(Value operand, Value source, Value init, const Window&,
                         const Region& select_body, const Region& scatter_body);
// `less` gets (a0, b0, a1, b1, ...) as 0-d values.
Values sort(const Values& operands, int64_t dimension, bool stable, const Region& less);

// --- Linear algebra -----------------------------------------------------------------------------

struct DotDims {
  Dims lhs_batching = {};
  Dims rhs_batching = {};
  Dims lhs_contracting;
  Dims rhs_contracting;
};
// Result dimensions: batching, free lhs, free rhs. `result` is the accumulation/result type.
Value dot_general(Value lhs, Value rhs, const DotDims&, ElementType result,
                  Precision precision = Precision::kHighest);

struct ConvolutionDims {
  // Layout by position: which dimension is batch, feature, and the spatial ones.
  int64_t input_batch = 0, input_feature = 1;
  Dims input_spatial;
  int64_t kernel_output_feature = 0, kernel_input_feature = 1;
  Dims kernel_spatial;
  int64_t output_batch = 0, output_feature = 1;
  Dims output_spatial;
};
struct ConvolutionWindow {
  Dims strides = {};      // default 1
  Dims padding_low = {};  // default 0
  Dims padding_high = {};
  Dims lhs_dilation = {};  // default 1
  Dims rhs_dilation = {};
  std::vector<bool> reversal = {};
  int64_t feature_groups = 1;
  int64_t batch_groups = 1;
};
Value convolution(Value lhs, Value rhs, const ConvolutionDims&, const ConvolutionWindow&,
                  ElementType result, Precision precision = Precision::kHighest);

enum class FftType { kFft, kIfft, kRfft, kIrfft };
Value fft(Value, FftType, const Dims& length);
Value cholesky(Value, bool lower);
enum class Transpose { kNone, kTranspose, kAdjoint };
Value triangular_solve(Value a, Value b, bool left_side, bool lower, bool unit_diagonal,
                       Transpose transpose_a);

// --- Control and the rest -----------------------------------------------------------------------

// (new state, random bits). `state` is a 1-d ui64 tensor of 2 elements: key and counter.
std::array<Value, 2> rng_bit_generator(Value state, const TensorType& bits);
Values if_(Value pred, const Region& on_true, const Region& on_false,
           const std::vector<TensorType>& results);
Values while_(const Values& init, const Region& condition, const Region& body);
// API version 4 (typed FFI) takes `backend_config` as the text of an MLIR dictionary, such as
// {alpha = 1.0 : f32}; the older versions take any string.
Values custom_call(Builder&, std::string_view target, const Values& operands,
                   const std::vector<TensorType>& results, std::string_view backend_config = "",
                   int api_version = 4, bool has_side_effect = false);
Values optimization_barrier(const Values&);
// (values, s32 indices) of the k largest along the last dimension.
std::array<Value, 2> top_k(Value, int64_t k);

}  // namespace torch_tpu::stablehlo
