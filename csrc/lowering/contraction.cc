#include "lowering/contraction.h"

namespace torch_tpu::lowering {

using namespace stablehlo;

namespace {

// Float8 has no arithmetic of its own on most hardware; float32 holds its products exactly.
Value widen_float8(Value value) {
  const ElementType type = value.dtype();
  const bool float8 = type == ElementType::kF8E4M3FN || type == ElementType::kF8E5M2;
  return float8 ? convert(value, ElementType::kF32) : value;
}

void require_arithmetic(const char* op, ElementType type) {
  if (is_bool(type)) throw Unsupported(std::string(op) + ": products of bool are not defined");
}

}  // namespace

ElementType accumulation_type(ElementType type) {
  const bool narrow = bit_width(type) < 32;
  if (!narrow || is_bool(type)) return type;
  if (is_float(type)) return ElementType::kF32;
  return is_unsigned_int(type) ? ElementType::kU32 : ElementType::kS32;
}

Value dot(Value lhs, Value rhs, const DotDims& dims) {
  require_arithmetic("dot", lhs.dtype());
  const ElementType result = accumulation_type(lhs.dtype());
  return dot_general(widen_float8(lhs), widen_float8(rhs), dims, result);
}

Value convolve(Value lhs, Value rhs, const ConvolutionDims& dims, const ConvolutionWindow& window) {
  require_arithmetic("convolution", lhs.dtype());
  const ElementType result = accumulation_type(lhs.dtype());
  return convolution(widen_float8(lhs), widen_float8(rhs), dims, window, result);
}

Value batched_matmul(Value lhs, Value rhs) {
  const int64_t rank = lhs.rank();
  DotDims dims;
  for (int64_t i = 0; i + 2 < rank; ++i) {
    dims.lhs_batching.push_back(i);
    dims.rhs_batching.push_back(i);
  }
  dims.lhs_contracting = {rank - 1};
  dims.rhs_contracting = {rank - 2};
  return dot(lhs, rhs, dims);
}

}  // namespace torch_tpu::lowering
