#include <array>
#include <bit>
#include <cmath>
#include <numbers>

#include "lowering/expression.h"
#include "lowering/random.h"

namespace torch_tpu::lowering {

namespace sh = stablehlo;

namespace {

Value shifted_right(Value bits, int by) {
  return by == 0 ? bits : sh::shift_right_logical(bits, sh::full_like(bits, by));
}

// Unsigned numbers below 2^31 (2^63) as floats: signed conversions are the cheap ones.
Value to_float(Value small_bits, ElementType type) {
  const bool wide = small_bits.dtype() == ElementType::kU64;
  const Value number =
      sh::bitcast_convert(small_bits, wide ? ElementType::kS64 : ElementType::kS32);
  return sh::convert(number, type);
}

// The bits without the lowest one as (k + 1/2) / 2^(width - 1): in (0, 1], finest near 0.
Value fraction_above_zero(Value bits, ElementType type) {
  const int width = bits.dtype() == ElementType::kU64 ? 64 : 32;
  return (to_float(shifted_right(bits, 1), type) + 0.5) * std::ldexp(1.0, 1 - width);
}

Value lowest_bit(Value bits) { return differs(sh::and_(bits, sh::full_like(bits, 1)), 0.0); }

Value polynomial(Value x, std::span<const double> coefficients) {
  Value sum = constant_like(x, coefficients.back());
  for (size_t i = coefficients.size() - 1; i-- > 0;) sum = sum * x + coefficients[i];
  return sum;
}

// The normal deviate that is exceeded in magnitude with probability p, for float32. With
// w = -log(p (2 - p)) it is (1 - p) times a smooth function of w, fitted here by least squares on
// Chebyshev nodes of w in [0, 5] and of sqrt(w) for w in [5, 23]; error below 3e-6.
Value normal_magnitude(Value p) {
  constexpr std::array kCentre = {2.1233137,      0.34880266,   -0.0059081707,
                                  -0.0017730104,  0.00030915,   -6.2179274e-06,
                                  -4.9905125e-06, 4.860979e-07, 4.035022e-08};
  constexpr std::array kTail = {4.7170877,     1.4246277,      0.0046711494,
                                -0.0028585198, 0.0014021018,   -0.0010839684,
                                0.0008116796,  -0.00024460867, -5.0778744e-06};
  const Value w = -sh::log(p * (2.0 - p));
  const Value centre = polynomial(w - 2.5, kCentre);
  const Value tail = polynomial(sh::sqrt(w) - 3.5, kTail);
  return choose(w < 5.0, centre, tail) * (1.0 - p);
}

}  // namespace

int64_t Words::below(uint64_t range) {
  const bool power = std::has_single_bit(range) && range <= (uint64_t{1} << 32);
  return power || (range != 0 && range <= (1u << 16)) ? 1 : 2;
}

Value Random::bits(ElementType unsigned_type, const Dims& dims) {
  const TensorType type{unsigned_type, dims};
  if (type.numel() == 0) return sh::splat(state_.builder(), type, 0);
  const std::array<Value, 2> made = sh::rng_bit_generator(state_, type);
  state_ = made[0];
  return made[1];
}

Value Random::uniform(ElementType type, const Dims& dims, int digits) {
  const bool wide = type == ElementType::kF64;
  if (digits == 0) digits = wide ? 53 : 24;
  const Value raw = bits(wide ? ElementType::kU64 : ElementType::kU32, dims);
  return to_float(shifted_right(raw, (wide ? 64 : 32) - digits), type) * std::ldexp(1.0, -digits);
}

Value Random::normal(ElementType type, const Dims& dims) {
  if (type == ElementType::kF64) {
    // Box and Muller's transformation.
    const Value p = fraction_above_zero(bits(ElementType::kU64, dims), type);
    const Value angle = uniform(type, dims) * (2 * std::numbers::pi);
    return sh::sqrt(-2.0 * sh::log(p)) * sh::cosine(angle);
  }
  const Value raw = bits(ElementType::kU32, dims);
  const Value magnitude = normal_magnitude(fraction_above_zero(raw, type));
  return choose(lowest_bit(raw), -magnitude, magnitude);
}

Value Random::exponential(ElementType type, const Dims& dims) {
  const Value raw = bits(type == ElementType::kF64 ? ElementType::kU64 : ElementType::kU32, dims);
  // One half of the bits' range stands for the large results, the other for the small ones.
  const Value p = fraction_above_zero(raw, type) * 0.5;
  return choose(lowest_bit(raw), -sh::log(p), -sh::log_plus_one(-p));
}

Value Random::cauchy(ElementType type, const Dims& dims) {
  const Value raw = bits(type == ElementType::kF64 ? ElementType::kU64 : ElementType::kU32, dims);
  const Value angle = fraction_above_zero(raw, type) * (std::numbers::pi / 2);
  const Value magnitude = sh::cosine(angle) / sh::sine(angle);
  return choose(lowest_bit(raw), -magnitude, magnitude);
}

Value Random::below(uint64_t range, const Dims& dims) {
  constexpr ElementType k32 = ElementType::kU32, k64 = ElementType::kU64;
  if (range == 0) return bits(k64, dims);
  if (std::has_single_bit(range)) {
    const int digits = std::countr_zero(range);
    if (digits == 0) return sh::splat(state_.builder(), {k32, dims}, 0);
    return digits <= 32 ? shifted_right(bits(k32, dims), 32 - digits)
                        : shifted_right(bits(k64, dims), 64 - digits);
  }
  const bool small = range <= (1u << 16);
  const Value raw = bits(small ? k32 : k64, dims);
  const Value limit = sh::full_like(raw, range);
  if (!small && range >= (uint64_t{1} << 32)) return sh::remainder(raw, limit);
  // The upper half of raw * range, in halves that do not overflow.
  const int half = small ? 16 : 32;
  const Value low_mask = sh::full_like(raw, (uint64_t{1} << half) - 1);
  const Value low = shifted_right(sh::and_(raw, low_mask) * limit, half);
  return shifted_right(shifted_right(raw, half) * limit + low, half);
}

ElementType sampling_type(ElementType dtype) {
  const ElementType real = sh::real_type(dtype);
  return real == ElementType::kF64 ? ElementType::kF64 : ElementType::kF32;
}

}  // namespace torch_tpu::lowering
