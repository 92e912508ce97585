// A checksum of a tensor: the exclusive or of its elements as 64 bits.
#include "lowering/expression.h"
#include "lowering/promotion.h"
#include "lowering/reduction.h"

namespace torch_tpu::lowering {

namespace sh = stablehlo;

namespace {

Value number(Value like, uint64_t n) { return sh::full_like(like, n); }

Value left(Value v, uint64_t by) { return sh::shift_left(v, number(v, by)); }
Value right(Value v, uint64_t by) { return sh::shift_right_logical(v, number(v, by)); }

// The bits of a float32 as a float64 has them, in integer arithmetic: not every device can look at
// a float64's bits.
Value double_bits(Value x) {
  const Value bits = sh::convert(sh::bitcast_convert(x, ElementType::kU32), ElementType::kU64);
  const Value sign = left(right(bits, 31), 63);
  const Value exponent = right(bits, 23) & number(bits, 0xff);
  const Value mantissa = bits & number(bits, 0x7fffff);
  const Value normal = left(exponent + number(bits, 1023 - 127), 52) | left(mantissa, 29);
  const Value quiet = sh::select(equals(mantissa, 0.0), number(bits, 0), number(bits, 1));
  const Value not_finite =
      number(bits, uint64_t{0x7ff} << 52) | left(mantissa, 29) | left(quiet, 51);
  // A subnormal number's first bit, number `first`, becomes the hidden one: 2^(first - 149).
  const Value first = number(bits, 63) - sh::count_leading_zeros(mantissa | number(bits, 1));
  const Value hidden = sh::shift_left(mantissa, number(bits, 52) - first);
  const Value subnormal =
      left(first + number(bits, 1023 - 149), 52) | (hidden & number(bits, (uint64_t{1} << 52) - 1));
  const Value small = sh::select(equals(mantissa, 0.0), number(bits, 0), subnormal);
  const Value magnitude = sh::select(equals(exponent, 0.0), small,
                                     sh::select(equals(exponent, 255.0), not_finite, normal));
  return sign | magnitude;
}

Value as_bits(Value x) {
  if (sh::is_float(x.dtype())) {
    return x.dtype() == ElementType::kF64 ? sh::bitcast_convert(x, ElementType::kU64)
                                          : double_bits(convert_halves(x));
  }
  if (sh::is_unsigned_int(x.dtype()) || sh::is_bool(x.dtype())) {
    return sh::convert(x, ElementType::kU64);
  }
  return sh::bitcast_convert(sh::convert(x, ElementType::kS64), ElementType::kU64);
}

Values hash_tensor(Call& call) {
  const Value self = call.tensor("self");
  if (sh::is_complex(self.dtype()) || call.integer_or("mode", 0) != 0) {
    throw Unsupported("hash_tensor: complex numbers, or a mode other than 0");
  }
  const Dims dims = reduced_dims(call, self.rank());
  const Value bits = as_bits(self);
  const Value zero = sh::scalar(call.builder(), ElementType::kU64, uint64_t{0});
  const Value result = sh::reduce({bits}, {zero}, dims,
                                  [](const Values& v) { return Values{sh::xor_(v[0], v[1])}; })[0];
  return {call.boolean("keepdim") ? keep_dims(result, self.dims(), dims) : result};
}

}  // namespace

void register_hash_tensor(Registry& r) { r.add("aten::hash_tensor", hash_tensor); }

}  // namespace torch_tpu::lowering
