#include "lowering/contraction.h"

#include "lowering/cpu_product.h"
#include "lowering/integer_product.h"
#include "lowering/tpu_product.h"

namespace torch_tpu::lowering {

using namespace stablehlo;

namespace {

bool is_narrow_float(ElementType type) { return is_float(type) && bit_width(type) < 32; }

// Narrow floats are multiplied as float32, which holds their products exactly; the CPU compiler
// does not take them with a float32 result. A TPU multiplies in bfloat16 whatever it is given, and
// sees from the precision that no more is needed.
Value widened(Value value) {
  return is_narrow_float(value.dtype()) ? convert(value, ElementType::kF32) : value;
}

Precision precision_of_narrow(ElementType type) {
  // float16 has three bits more than bfloat16.
  return type == ElementType::kF16 ? Precision::kHigh : Precision::kDefault;
}

// The float32 numbers that are nearest in bfloat16.
Value rounded(Value value) {
  if (is_complex(value.dtype())) return complex(rounded(real(value)), rounded(imag(value)));
  constexpr int kExponentBits = 8, kMantissaBits = 7;
  return reduce_precision(value, kExponentBits, kMantissaBits);
}

Value without_nan(Value value) {
  if (is_complex(value.dtype())) return complex(without_nan(real(value)), without_nan(imag(value)));
  const Value zero = splat(value.builder(), value.type(), 0);
  return select(eq(value, value), value, zero);
}

// What rounding left, rounded in turn. Nothing where there is no difference to take: of infinities.
Value rest(Value value, Value rounded_value) {
  return without_nan(rounded(subtract(value, rounded_value)));
}

// The product of float32 operands at the program's level. `multiply` is linear in either operand.
template <typename Multiply>
Value float32_product(Value lhs, Value rhs, const Multiply& multiply) {
  const Float32Products wanted = lhs.builder().float32_products();
  if (!wanted.emulated || wanted.precision == Precision::kHighest) {
    return multiply(lhs, rhs, wanted.precision);
  }
  const Value l = rounded(lhs), r = rounded(rhs);
  const Value product = multiply(l, r, Precision::kHighest);
  if (wanted.precision == Precision::kDefault) return product;
  // Infinity times a rest of zero is no number: the first product has it right.
  const Value correction = without_nan(add(multiply(l, rest(rhs, r), Precision::kHighest),
                                           multiply(rest(lhs, l), r, Precision::kHighest)));
  return add(correction, product);
}

template <typename Multiply>
Value product(Value lhs, Value rhs, bool exact, const Multiply& multiply) {
  const ElementType type = lhs.dtype();
  if (is_narrow_float(type)) return multiply(widened(lhs), widened(rhs), precision_of_narrow(type));
  const bool has_levels = type == ElementType::kF32 || type == ElementType::kC64;
  if (exact || !has_levels) return multiply(lhs, rhs, Precision::kHighest);
  return float32_product(lhs, rhs, multiply);
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

Value dot_at(Value lhs, Value rhs, const DotDims& dims, bool exact) {
  if (const DotOperands apart = product_apart({lhs, rhs, dims}); apart.lhs) {
    const Value out = dot_at(apart.lhs, apart.rhs, apart.dims, exact);
    Dims joined;
    if (dims.lhs_batching.empty()) {
      joined = {lhs.dim(1 - dims.lhs_contracting[0]), out.dims().back()};
    } else {
      joined = {lhs.dim(0), out.dim(out.rank() - 2), out.dims().back()};
    }
    return reshape(out, joined);
  }
  require_arithmetic("dot", lhs, rhs);
  if (needs_written_out_product(lhs.dtype())) return integer_dot(lhs, rhs, dims);
  const ElementType result = accumulation_type(lhs.dtype());
  const DotOperands written = product_for_cpu({lhs, rhs, dims});
  return product(written.lhs, written.rhs, exact, [&](Value l, Value r, Precision precision) {
    return dot_general(l, r, written.dims, result, precision);
  });
}

}  // namespace

ElementType accumulation_type(ElementType type) {
  const bool narrow = bit_width(type) < 32;
  if (!narrow || is_bool(type)) return type;
  if (is_float(type)) return ElementType::kF32;
  return is_unsigned_int(type) ? ElementType::kU32 : ElementType::kS32;
}

Value dot(Value lhs, Value rhs, const DotDims& dims) { return dot_at(lhs, rhs, dims, false); }

Value exact_dot(Value lhs, Value rhs, const DotDims& dims) { return dot_at(lhs, rhs, dims, true); }

Value convolve(Value lhs, Value rhs, const ConvolutionDims& dims, const ConvolutionWindow& window) {
  require_arithmetic("convolution", lhs, rhs);
  if (needs_written_out_product(lhs.dtype())) return integer_convolution(lhs, rhs, dims, window);
  const ElementType result = accumulation_type(lhs.dtype());
  return product(lhs, rhs, false, [&](Value l, Value r, Precision precision) {
    return convolution(l, r, dims, window, result, precision);
  });
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
