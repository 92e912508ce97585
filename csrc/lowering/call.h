// One operator call as a lowering rule sees it: arguments by name, values of a program under
// construction. No torch types: the same rules serve eager calls, traced graphs and unit tests.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "stablehlo/builder.h"

namespace torch_tpu::lowering {

using stablehlo::Builder;
using stablehlo::Dims;
using stablehlo::ElementType;
using stablehlo::TensorType;
using stablehlo::Value;
using stablehlo::Values;

// A rule met something it does not cover (a dtype, a mode). The dispatcher then goes on to
// PyTorch's decomposition or the CPU. The message says what is not covered.
class Unsupported : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The arguments are wrong and the user must hear it, in PyTorch's words.
class InvalidArgument : public std::runtime_error {
 public:
  enum class Kind { kRuntime, kIndex, kValue, kNotImplemented };
  explicit InvalidArgument(const std::string& message, Kind kind = Kind::kRuntime)
      : std::runtime_error(message), kind(kind) {}
  Kind kind;
};

// A number argument (Scalar, float) is either known while lowering, or an operand of the program:
// a 0-d value of type i1, i64, f64 or complex<f64>. Numbers that only feed arithmetic are
// operands, so that a changed learning rate does not compile again; exact 0, 1 and -1 are known.
struct Number {
  ElementType type = ElementType::kF64;       // kPred, kS64, kF64 or kC128
  std::optional<std::complex<double>> known;  // exact for |int| < 2^53; see known_int
  std::optional<int64_t> known_int;
  Value operand;
};

struct TensorArgument {
  Value value;                  // empty: an undefined tensor (None)
  bool wrapped_number = false;  // a Python number in tensor's clothes: weak in type promotion
  // PyTorch's is_contiguous(). Only matters to rules whose saved results its backward formulas
  // read differently for each layout of the argument.
  bool contiguous = true;
};

using Argument = std::variant<std::monostate,               // None
                              TensorArgument,               // Tensor
                              std::vector<TensorArgument>,  // Tensor[], Tensor?[]
                              Number,                       // Scalar, float
                              std::vector<Number>,          // Scalar[], float[]
                              int64_t,                      // int, SymInt
                              Dims,                         // int[], SymInt[]
                              bool, std::vector<bool>, std::string,
                              ElementType>;  // ScalarType

class Call {
 public:
  Call(Builder& builder, std::string op, std::string overload)
      : builder_(builder), op_(std::move(op)), overload_(std::move(overload)) {}

  Builder& builder() const { return builder_; }
  const std::string& op() const { return op_; }              // "aten::add_"
  const std::string& overload() const { return overload_; }  // "Tensor"

  // Whether the schema has this argument and it is not None / undefined.
  bool has(std::string_view name) const;

  Value tensor(std::string_view name) const;           // throws Unsupported when absent
  Value tensor_or_empty(std::string_view name) const;  // empty Value when absent
  Values tensors(std::string_view name) const;         // undefined entries are empty Values
  bool is_wrapped_number(std::string_view name) const;
  const TensorArgument& tensor_argument(std::string_view name) const;

  // A 0-d value of the wanted type, from a known number or an operand.
  Value number(std::string_view name, ElementType type) const;
  Value number_or(std::string_view name, double otherwise, ElementType type) const;
  Values numbers(std::string_view name, ElementType type) const;  // Scalar[], float[]
  // The number, when it is known while lowering.
  std::optional<double> known_number(std::string_view name) const;
  bool is_known(std::string_view name, double value) const;
  ElementType number_type(std::string_view name) const;  // kPred, kS64, kF64 or kC128

  int64_t integer(std::string_view name) const;
  int64_t integer_or(std::string_view name, int64_t otherwise) const;
  bool boolean(std::string_view name, bool otherwise = false) const;
  Dims ints(std::string_view name) const;  // also a single int; empty when absent
  std::vector<bool> bools(std::string_view name) const;
  std::string string(std::string_view name, std::string_view otherwise = "") const;
  std::optional<ElementType> dtype(std::string_view name) const;

  // What PyTorch's meta kernels say the results are, in the order a rule returns them (see
  // Rule). num_outputs() is 0 when there was no meta kernel.
  size_t num_outputs() const { return outputs_.size(); }
  const TensorType& output(size_t i = 0) const;

  // (seed, offset) of the device's generator as a ui64[2] operand (see random.h); the
  // generator advances by `count` 32-bit numbers per call of the program.
  Value rng_state(int64_t count);

  // --- For whoever makes the call -----------------------------------------------------------
  void set(std::string name, Argument argument) {
    arguments_.insert_or_assign(std::move(name), std::move(argument));
  }
  void set_outputs(std::vector<TensorType> outputs) { outputs_ = std::move(outputs); }
  void set_rng(std::function<Value(int64_t)> rng) { rng_ = std::move(rng); }
  const Argument* find(std::string_view name) const;
  Value materialize(const Number& number, ElementType type) const;

 private:
  Builder& builder_;
  std::string op_;
  std::string overload_;
  std::map<std::string, Argument, std::less<>> arguments_;
  std::vector<TensorType> outputs_;
  std::function<Value(int64_t)> rng_;
};

// A dimension argument: negative counts from the end; a 0-d tensor has one virtual dimension.
int64_t wrap_dim(int64_t dim, int64_t rank);
// Sorted, wrapped; all dimensions when `dims` is empty.
Dims wrap_dims(const Dims& dims, int64_t rank);

}  // namespace torch_tpu::lowering
