#include "lowering/contraction.h"

namespace torch_tpu::lowering {

using namespace stablehlo;

namespace {

// Narrow floats are multiplied as float32, which holds their products exactly; the CPU compiler
// does not take them with a float32 result. A TPU multiplies in bfloat16 whatever it is given, and
// sees from the precision that no more is needed.
Value widened(Value value) {
  const ElementType type = value.dtype();
  return is_float(type) && bit_width(type) < 32 ? convert(value, ElementType::kF32) : value;
}

Precision precision_for(ElementType type) {
  if (!is_float(type) || bit_width(type) >= 32) return Precision::kHighest;
  // float16 has three bits more than bfloat16.
  return type == ElementType::kF16 ? Precision::kHigh : Precision::kDefault;
}

void require_arithmetic(const char* op, Value lhs, Value rhs) {
  if (lhs.dtype() != rhs.dtype()) {
    throw InvalidArgument(std::string(op) + ": expected two operands of the same dtype, got " +
                          to_string(lhs.type()) + " and " + to_string(rhs.type()));
  }
  if (is_bool(lhs.dtype())) {
    throw Unsupported(std::string(op) + ": products of bool are not defined");
  }
}

}  // namespace

ElementType accumulation_type(ElementType type) {
  const bool narrow = bit_width(type) < 32;
  if (!narrow || is_bool(type)) return type;
  if (is_float(type)) return ElementType::kF32;
  return is_unsigned_int(type) ? ElementType::kU32 : ElementType::kS32;
}

Value dot(Value lhs, Value rhs, const DotDims& dims) {
  require_arithmetic("dot", lhs, rhs);
  const ElementType result = accumulation_type(lhs.dtype());
  return dot_general(widened(lhs), widened(rhs), dims, result, precision_for(lhs.dtype()));
}

Value convolve(Value lhs, Value rhs, const ConvolutionDims& dims, const ConvolutionWindow& window) {
  require_arithmetic("convolution", lhs, rhs);
  const ElementType result = accumulation_type(lhs.dtype());
  return convolution(widened(lhs), widened(rhs), dims, window, result, precision_for(lhs.dtype()));
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
