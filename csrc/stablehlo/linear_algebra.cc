#include <algorithm>

#include "stablehlo/attributes.h"
#include "stablehlo/check.h"

namespace torch_tpu::stablehlo {
namespace {

// Empty for the default, and for integers, which have no other.
std::string precision_config(Precision precision, ElementType type) {
  if (precision == Precision::kDefault || !(is_float(type) || is_complex(type))) return "";
  const std::string one = precision == Precision::kHigh ? "#stablehlo<precision HIGH>"
                                                        : "#stablehlo<precision HIGHEST>";
  return ", precision_config = [" + one + ", " + one + "]";
}

void check_element_types(std::string_view op, Value lhs, Value rhs) {
  const auto is_f8 = [](ElementType t) {
    return t == ElementType::kF8E4M3FN || t == ElementType::kF8E5M2;
  };
  if (lhs.dtype() == rhs.dtype() || (is_f8(lhs.dtype()) && is_f8(rhs.dtype()))) return;
  fail(op, "operands must have the same element type, got " + to_string(lhs.type()) + " and " +
               to_string(rhs.type()));
}

void check_result_type(std::string_view op, Value lhs, ElementType result) {
  if (is_bool(lhs.dtype()) || is_complex(lhs.dtype()) != is_complex(result) ||
      is_float(lhs.dtype()) != is_float(result) || is_bool(result)) {
    fail(op, "the product of " + std::string(name(lhs.dtype())) + " numbers cannot be " +
                 std::string(name(result)));
  }
}

Dims joined(const Dims& a, const Dims& b) {
  Dims all = a;
  all.insert(all.end(), b.begin(), b.end());
  return all;
}

void check_square(std::string_view op, Value a) {
  const int64_t rank = a.rank();
  if (rank < 2 || a.dim(rank - 1) != a.dim(rank - 2)) {
    fail(op, "expected a batch of square matrices, got " + to_string(a.type()));
  }
  if (!is_float(a.dtype()) && !is_complex(a.dtype())) {
    fail(op, "expected a float or complex tensor, got " + to_string(a.type()));
  }
}

}  // namespace

Value dot_general(Value lhs, Value rhs, const DotDims& d, ElementType result, Precision precision) {
  constexpr std::string_view kOp = "stablehlo.dot_general";
  check_element_types(kOp, lhs, rhs);
  check_result_type(kOp, lhs, result);
  const Dims lhs_used = joined(d.lhs_batching, d.lhs_contracting);
  const Dims rhs_used = joined(d.rhs_batching, d.rhs_contracting);
  check_dimensions(kOp, "batching and contracting dimensions of the left", lhs_used, lhs.rank());
  check_dimensions(kOp, "batching and contracting dimensions of the right", rhs_used, rhs.rank());
  bool fits = d.lhs_batching.size() == d.rhs_batching.size() && lhs_used.size() == rhs_used.size();
  for (size_t i = 0; fits && i < lhs_used.size(); ++i) {
    fits = lhs.dim(lhs_used[i]) == rhs.dim(rhs_used[i]);
  }
  if (!fits) {
    fail(kOp, "dimensions " + to_string(lhs_used) + " of " + to_string(lhs.type()) + " and " +
                  to_string(rhs_used) + " of " + to_string(rhs.type()) + " do not match");
  }
  Dims dims;
  for (const int64_t i : d.lhs_batching) dims.push_back(lhs.dim(i));
  for (int64_t i = 0; i < lhs.rank(); ++i) {
    if (!contains(lhs_used, i)) dims.push_back(lhs.dim(i));
  }
  for (int64_t i = 0; i < rhs.rank(); ++i) {
    if (!contains(rhs_used, i)) dims.push_back(rhs.dim(i));
  }
  std::string attributes = "dot_dimension_numbers = #stablehlo.dot<lhs_batching_dimensions = ";
  attributes += to_string(d.lhs_batching);
  attributes += ", rhs_batching_dimensions = " + to_string(d.rhs_batching);
  attributes += ", lhs_contracting_dimensions = " + to_string(d.lhs_contracting);
  attributes += ", rhs_contracting_dimensions = " + to_string(d.rhs_contracting);
  attributes += '>' + precision_config(precision, lhs.dtype());
  return lhs.builder().append1(kOp, {lhs, rhs}, attributes, {result, dims});
}

namespace {

// One side of #stablehlo.conv: the letters and spatial numbers in the order of the dimensions.
std::string layout(std::string_view what, int64_t first, char first_letter, int64_t second,
                   char second_letter, const Dims& spatial) {
  constexpr std::string_view kOp = "stablehlo.convolution";
  const auto rank = static_cast<int64_t>(spatial.size()) + 2;
  Dims all = spatial;
  all.push_back(first);
  all.push_back(second);
  check_dimensions(kOp, what, all, rank);
  std::string out = "[";
  for (int64_t i = 0; i < rank; ++i) {
    if (i) out += ", ";
    if (i == first) {
      out += first_letter;
    } else if (i == second) {
      out += second_letter;
    } else {
      append_integer(out, std::find(spatial.begin(), spatial.end(), i) - spatial.begin());
    }
  }
  return out + "]";
}

}  // namespace

Value convolution(Value lhs, Value rhs, const ConvolutionDims& d, const ConvolutionWindow& window,
                  ElementType result, Precision precision) {
  constexpr std::string_view kOp = "stablehlo.convolution";
  check_element_types(kOp, lhs, rhs);
  check_result_type(kOp, lhs, result);
  const size_t spatial = d.input_spatial.size();
  const auto count = static_cast<int64_t>(spatial);
  check_size(kOp, "kernel spatial dimensions", d.kernel_spatial, count);
  check_size(kOp, "output spatial dimensions", d.output_spatial, count);
  if (lhs.rank() != count + 2 || rhs.rank() != count + 2) {
    fail(kOp, "expected input and kernel of rank " + std::to_string(count + 2) + ", got " +
                  to_string(lhs.type()) + " and " + to_string(rhs.type()));
  }
  ConvolutionWindow w = window;
  for (auto& [dims, value] : {std::pair<Dims*, int64_t>{&w.strides, 1},
                              {&w.padding_low, 0},
                              {&w.padding_high, 0},
                              {&w.lhs_dilation, 1},
                              {&w.rhs_dilation, 1}}) {
    if (dims->empty()) dims->assign(spatial, value);
    check_size(kOp, "a window attribute", *dims, count);
  }
  if (w.reversal.empty()) w.reversal.assign(spatial, false);
  if (w.reversal.size() != spatial)
    fail(kOp, "reversal must have one element per spatial dimension");
  std::string attributes = "dimension_numbers = #stablehlo.conv<";
  attributes += layout("input layout", d.input_batch, 'b', d.input_feature, 'f', d.input_spatial);
  attributes += 'x';
  attributes += layout("kernel layout", d.kernel_input_feature, 'i', d.kernel_output_feature, 'o',
                       d.kernel_spatial);
  attributes += "->";
  attributes +=
      layout("output layout", d.output_batch, 'b', d.output_feature, 'f', d.output_spatial);

  const int64_t batch = lhs.dim(d.input_batch);
  const int64_t features = lhs.dim(d.input_feature);
  const int64_t out_features = rhs.dim(d.kernel_output_feature);
  const std::string both = to_string(lhs.type()) + " and " + to_string(rhs.type());
  if (w.feature_groups < 1 || w.batch_groups < 1 || (w.feature_groups > 1 && w.batch_groups > 1)) {
    fail(kOp, "group counts must be at least 1, and only one may be larger");
  }
  if (features != rhs.dim(d.kernel_input_feature) * w.feature_groups) {
    fail(kOp, "the input must have " + std::to_string(w.feature_groups) +
                  " times the kernel's input features, got " + both);
  }
  if (batch % w.batch_groups != 0 || out_features % w.batch_groups != 0 ||
      out_features % w.feature_groups != 0) {
    fail(kOp, "the groups (" + std::to_string(w.feature_groups) + " of features, " +
                  std::to_string(w.batch_groups) + " of batches) do not divide " + both);
  }
  TensorType type{result, Dims(spatial + 2)};
  type.dims[static_cast<size_t>(d.output_batch)] = batch / w.batch_groups;
  type.dims[static_cast<size_t>(d.output_feature)] = out_features;
  const auto dilated = [](int64_t size, int64_t dilation) {
    return size == 0 ? 0 : (size - 1) * dilation + 1;
  };
  for (size_t i = 0; i < spatial; ++i) {
    if (w.strides[i] < 1 || w.lhs_dilation[i] < 1 || w.rhs_dilation[i] < 1) {
      fail(kOp, "strides and dilations must be at least 1");
    }
    const int64_t base = dilated(lhs.dim(d.input_spatial[i]), w.lhs_dilation[i]) +
                         w.padding_low[i] + w.padding_high[i];
    const int64_t kernel = dilated(rhs.dim(d.kernel_spatial[i]), w.rhs_dilation[i]);
    type.dims[static_cast<size_t>(d.output_spatial[i])] =
        base < kernel || base <= 0 ? 0 : (base - kernel) / w.strides[i] + 1;
  }
  attributes += ">, window_strides = " + dense_array(w.strides);
  attributes += ", padding = " + padding_pairs(w.padding_low, w.padding_high);
  attributes += ", lhs_dilation = " + dense_array(w.lhs_dilation);
  attributes += ", rhs_dilation = " + dense_array(w.rhs_dilation);
  attributes += ", window_reversal = " + dense_array(w.reversal);
  attributes += ", feature_group_count = " + i64(w.feature_groups);
  attributes += ", batch_group_count = " + i64(w.batch_groups);
  attributes += precision_config(precision, lhs.dtype());
  return lhs.builder().append1(kOp, {lhs, rhs}, attributes, type);
}

Value fft(Value x, FftType kind, const Dims& length) {
  constexpr std::string_view kOp = "stablehlo.fft";
  constexpr const char* kNames[] = {"FFT", "IFFT", "RFFT", "IRFFT"};
  const auto count = static_cast<int64_t>(length.size());
  if (count < 1 || count > 3 || count > x.rank()) {
    fail(kOp, "expected 1 to 3 transformed dimensions of " + to_string(x.type()) + ", got " +
                  to_string(length));
  }
  const bool from_real = kind == FftType::kRfft;
  if (from_real ? (x.dtype() != ElementType::kF32 && x.dtype() != ElementType::kF64)
                : !is_complex(x.dtype())) {
    fail(kOp, std::string(kNames[static_cast<int>(kind)]) + " takes " +
                  (from_real ? "an f32 or f64" : "a complex") + " tensor, got " +
                  to_string(x.type()));
  }
  const Dims expected(x.dims().end() - count, x.dims().end());
  Dims dims = x.dims();
  ElementType dtype = x.dtype();
  Dims given = length;
  if (kind == FftType::kRfft) {
    dtype = complex_type(dtype);
    dims.back() = length.back() == 0 ? 0 : length.back() / 2 + 1;
  } else if (kind == FftType::kIrfft) {
    dtype = real_type(dtype);
    dims.back() = length.back();
    given.back() = length.back() == 0 ? 0 : length.back() / 2 + 1;
  }
  if (given != expected) {
    fail(kOp, "length " + to_string(length) + " does not fit " + to_string(x.type()));
  }
  std::string attributes = "fft_type = #stablehlo<fft_type ";
  attributes += kNames[static_cast<int>(kind)];
  attributes += ">, fft_length = " + dense_array(length);
  return x.builder().append1(kOp, {x}, attributes, {dtype, dims});
}

Value cholesky(Value a, bool lower) {
  constexpr std::string_view kOp = "stablehlo.cholesky";
  check_square(kOp, a);
  return a.builder().append1(kOp, {a}, "lower = " + std::string(boolean(lower)), a.type());
}

Value triangular_solve(Value a, Value b, bool left_side, bool lower, bool unit_diagonal,
                       Transpose transpose_a) {
  constexpr std::string_view kOp = "stablehlo.triangular_solve";
  constexpr const char* kNames[] = {"NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"};
  check_square(kOp, a);
  const int64_t rank = a.rank();
  bool fits = a.dtype() == b.dtype() && b.rank() == rank;
  for (int64_t i = 0; fits && i < rank - 2; ++i) fits = a.dim(i) == b.dim(i);
  if (!fits || b.dim(left_side ? rank - 2 : rank - 1) != a.dim(rank - 1)) {
    fail(kOp, "the right-hand side " + to_string(b.type()) + " does not fit the matrix " +
                  to_string(a.type()));
  }
  std::string attributes = "left_side = ";
  attributes += boolean(left_side);
  attributes += ", lower = ";
  attributes += boolean(lower);
  attributes += ", unit_diagonal = ";
  attributes += boolean(unit_diagonal);
  attributes += ", transpose_a = #stablehlo<transpose ";
  attributes += kNames[static_cast<int>(transpose_a)];
  attributes += '>';
  return a.builder().append1(kOp, {a, b}, attributes, b.type());
}

}  // namespace torch_tpu::stablehlo
