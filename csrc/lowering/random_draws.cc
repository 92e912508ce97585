#include <array>
#include <bit>
#include <cmath>
#include <limits>
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

// --- Bits -------------------------------------------------------------------------------------

struct Pair {
  Value first, second;
};

Value state_element(Value state, int64_t i) {
  return sh::reshape(sh::slice_dim(state, 0, i, i + 1), {});
}

// The lower (0) or upper (1) 32 bits.
Value half(Value bits, int which) {
  return sh::convert(
      which == 0 ? sh::and_(bits, sh::full_like(bits, 0xffffffffu)) : shifted_right(bits, 32),
      ElementType::kU32);
}

// first, first + 1, ... in row-major order, as lower and upper halves.
Pair counters(Value first, const Dims& dims) {
  Builder& b = first.builder();
  const TensorType type{ElementType::kU32, dims};
  if (type.numel() > std::numeric_limits<uint32_t>::max()) {
    throw Unsupported("random numbers: more than 2^32 elements at once");
  }
  Value position = sh::splat(b, type, 0);
  int64_t stride = 1;
  for (int64_t d = type.rank() - 1; d >= 0; --d) {
    position = position + sh::iota(b, type, d) * static_cast<double>(stride);
    stride *= type.dims[static_cast<size_t>(d)];
  }
  const auto wide = [&](Value v) { return sh::broadcast_to(v, dims); };
  const Value low = wide(half(first, 0)) + position;
  const Value carry = sh::convert(low < position, ElementType::kU32);
  return {low, wide(half(first, 1)) + carry};
}

Value rotated_left(Value bits, int by) {
  return sh::or_(sh::shift_left(bits, sh::full_like(bits, by)), shifted_right(bits, 32 - by));
}

// Threefry-2x32 with 20 rounds: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"
// (2011). Every element is a function of its own counter, so that draws fuse into what uses them;
// 32-bit additions, rotations and xors are cheap on every device.
Pair threefry(Pair key, Pair counter) {
  constexpr std::array<std::array<int, 4>, 2> kRotations = {{{13, 15, 26, 6}, {17, 29, 16, 24}}};
  const Dims& dims = counter.first.dims();
  const Value parity = sh::full_like(key.first, 0x1BD11BDAu);
  std::array<Value, 3> keys = {key.first, key.second,
                               sh::xor_(parity, sh::xor_(key.first, key.second))};
  for (Value& k : keys) k = sh::broadcast_to(k, dims);
  Value x = counter.first + keys[0], y = counter.second + keys[1];
  for (size_t group = 0; group < 5; ++group) {
    for (const int by : kRotations[group % 2]) {
      x = x + y;
      y = sh::xor_(rotated_left(y, by), x);
    }
    x = x + keys[(group + 1) % 3];
    y = y + keys[(group + 2) % 3] + static_cast<double>(group + 1);
  }
  return {x, y};
}

// --- Floating point ---------------------------------------------------------------------------

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
  const Value seed = state_element(state_, 0), offset = state_element(state_, 1);
  // The offset counts blocks of four words.
  const auto [low, high] = counters(offset * 4.0, dims);
  const Pair made = threefry({half(seed, 0), half(seed, 1)}, {low, high});
  const double blocks = static_cast<double>((type.numel() + 3) / 4);
  state_ = sh::concatenate({sh::reshape(seed, {1}), sh::reshape(offset + blocks, {1})}, 0);
  if (unsigned_type == ElementType::kU32) return sh::xor_(made.first, made.second);
  const Value upper = sh::convert(made.first, ElementType::kU64);
  return sh::or_(sh::shift_left(upper, sh::full_like(upper, 32)),
                 sh::convert(made.second, ElementType::kU64));
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
