// Sorting on the CPU's compiler: it compares two integers in a loop of its own, and anything else
// by a call for each comparison. So a value and its position become one integer, which is also
// unique: the order is stable whatever the algorithm.
#include <bit>
#include <cstdint>
#include <optional>

#include "lowering/expression.h"
#include "lowering/indexing.h"
#include "lowering/platform.h"
#include "lowering/reduction.h"
#include "lowering/sorting.h"

namespace torch_tpu::lowering {

namespace sh = stablehlo;

namespace {

// How values, positions and keys fit into each other.
struct Packing {
  ElementType value, key;
  int position_bits = 0;  // of the key, the lower ones
  bool is_float = false;
  bool descending = false;
};

Value shifted(Value x, int bits) { return sh::shift_left(x, constant_like(x, bits)); }
Value unshifted(Value x, int bits) { return sh::shift_right_arithmetic(x, constant_like(x, bits)); }

// The order of a float's bits, read as a signed integer, is its own, but for negative numbers; the
// two zeros must become equal, and all NaNs equal and the largest. Integer arithmetic throughout:
// the CPU takes subnormal numbers for zero.
struct Bits {
  Value ordered, negative_zero;
};

constexpr int kFloatBits = 32;  // float16 and bfloat16 stand in the upper half

Value mirror_negatives(Value bits) {
  return choose(bits < 0.0, sh::xor_(bits, constant_like(bits, INT32_MAX)), bits);
}

Bits ordered_bits(Value x) {
  const int width = sh::bit_width(x.dtype());
  const ElementType same = width == kFloatBits ? ElementType::kS32 : ElementType::kS16;
  const Value bits =
      shifted(sh::convert(sh::bitcast_convert(x, same), ElementType::kS32), kFloatBits - width);
  const int64_t infinity = x.dtype() == ElementType::kF16 ? 0x7c000000 : 0x7f800000;
  const Value magnitude = bits & constant_like(bits, INT32_MAX);
  const Value nan = magnitude > static_cast<double>(infinity);
  const Value negative_zero = equals(bits, INT32_MIN);
  const Value ordered = choose(negative_zero, 0.0, mirror_negatives(bits));
  return {choose(nan, static_cast<double>(INT32_MAX), ordered), negative_zero};
}

Value float_of_bits(Value ordered, Value negative_zero, ElementType type) {
  const int width = sh::bit_width(type);
  const ElementType same = width == kFloatBits ? ElementType::kS32 : ElementType::kS16;
  const Value bits =
      choose(negative_zero, static_cast<double>(INT32_MIN), mirror_negatives(ordered));
  return sh::bitcast_convert(sh::convert(unshifted(bits, kFloatBits - width), same), type);
}

// A float's key has its ordered bits (the width of its type), the position, and one bit for what
// the order does not tell: whether a zero is the negative one.
Value packed(Value x, Value position, const Packing& p) {
  const auto in_key = [&](Value v) { return sh::convert(v, p.key); };
  Value upper, lower = in_key(position);
  if (p.is_float) {
    const Bits bits = ordered_bits(x);
    upper = in_key(unshifted(bits.ordered, kFloatBits - sh::bit_width(p.value)));
    lower = shifted(lower, 1) + in_key(bits.negative_zero);
  } else {
    upper = in_key(x);
  }
  if (p.descending) upper = sh::not_(upper);
  return shifted(upper, p.position_bits) | lower;
}

Sorted unpacked(Value key, const Packing& p, ElementType position) {
  Value upper = unshifted(key, p.position_bits);
  if (p.descending) upper = sh::not_(upper);
  const Value lower =
      key & constant_like(key, static_cast<double>((int64_t{1} << p.position_bits) - 1));
  if (!p.is_float) return {sh::convert(upper, p.value), sh::convert(lower, position)};
  const Value negative_zero = differs(lower & constant_like(lower, 1), 0.0);
  // NaN is INT32_MAX, of which narrow types have kept the upper half: a NaN of theirs.
  const Value ordered =
      shifted(sh::convert(upper, ElementType::kS32), kFloatBits - sh::bit_width(p.value));
  return {float_of_bits(ordered, negative_zero, p.value),
          sh::convert(unshifted(lower, 1), position)};
}

std::optional<Packing> packing(ElementType value, int64_t n, bool descending) {
  const bool is_float =
      value == ElementType::kF32 || value == ElementType::kF16 || value == ElementType::kBF16;
  if ((sh::is_float(value) && !is_float) || sh::is_complex(value)) return std::nullopt;
  const int position_bits = std::bit_width(static_cast<uint64_t>(n - 1)) + (is_float ? 1 : 0);
  int value_bits = sh::is_bool(value) ? 1 : sh::bit_width(value);
  if (sh::is_unsigned_int(value) || sh::is_bool(value)) ++value_bits;  // keys have a sign
  if (value_bits > 33) return std::nullopt;
  if (value_bits + position_bits > 64) return std::nullopt;
  const ElementType key = value_bits + position_bits <= 32 ? ElementType::kS32 : ElementType::kS64;
  return Packing{value, key, position_bits, is_float, descending};
}

Sorted sort_packed(Value x, Value position, int64_t dim, const Packing& p) {
  const Values out = sh::sort({packed(x, position, p)}, dim, /*stable=*/false,
                              [](const Values& v) { return Values{sh::lt(v[0], v[1])}; });
  return unpacked(out[0], p, position.dtype());
}

Value ordered_bits_of_double(Value x) {
  const Value bits = sh::bitcast_convert(x, ElementType::kS64);
  const auto all = [&](int64_t n) { return sh::full_like(bits, n); };
  const Value nan = sh::gt(bits & all(INT64_MAX), all(int64_t{0x7ff} << 52));
  const Value mirrored = choose(bits < 0.0, sh::xor_(bits, all(INT64_MAX)), bits);
  const Value ordered = sh::select(sh::eq(bits, all(INT64_MIN)), all(0), mirrored);
  return sh::select(nan, all(INT64_MAX), ordered);
}

// Keys that leave no room: sorted by their lower halves, then by their upper ones.
Sorted sort_by_halves(Value x, Value position, int64_t dim, bool descending) {
  const int position_bits = std::bit_width(static_cast<uint64_t>(x.dim(dim) - 1));
  Value key = ordered_bits_of_double(x);
  if (descending) key = sh::not_(key);
  const auto order = [&](Value half) {
    const Value places = sh::convert(position, ElementType::kS64);
    const Value sorted = sh::sort({shifted(half, position_bits) | places}, dim, /*stable=*/false,
                                  [](const Values& v) { return Values{sh::lt(v[0], v[1])}; })[0];
    const Value mask = sh::full_like(sorted, (int64_t{1} << position_bits) - 1);
    return sh::convert(sorted & mask, position.dtype());
  };
  const Value first = order(key & sh::full_like(key, int64_t{UINT32_MAX}));
  const Value second = order(take_along(unshifted(key, 32), dim, first));
  const Value indices = take_along(first, dim, second);
  return {take_along(x, dim, indices), indices};
}

}  // namespace

std::optional<Sorted> sorted_by_packing(Value value, Value position, int64_t dim, bool descending,
                                        const std::function<Sorted()>& otherwise) {
  if (CompilingFor::platform() != Platform::kCpu) return std::nullopt;
  const int64_t n = value.dim(dim);
  if (const auto p = packing(value.dtype(), n, descending)) {
    return sort_packed(value, position, dim, *p);
  }
  if (value.dtype() == ElementType::kF64 && n <= INT32_MAX) {
    return sort_by_halves(value, position, dim, descending);
  }
  if (value.dtype() != ElementType::kS64) return std::nullopt;
  // Wide integers are mostly small numbers.
  const int position_bits = std::bit_width(static_cast<uint64_t>(n - 1));
  const Packing p{ElementType::kS64, ElementType::kS64, position_bits, false, descending};
  const Value upper_half = unshifted(value, 63 - position_bits);
  const Value fits = equals(upper_half, 0.0) | equals(upper_half, -1.0);
  Dims all;
  for (int64_t d = 0; d < value.rank(); ++d) all.push_back(d);
  const auto results = [](const Sorted& s) { return Values{s.values, s.indices}; };
  const Values out = sh::if_(
      all_over(fits, all),
      [&](const Values&) { return results(sort_packed(value, position, dim, p)); },
      [&](const Values&) { return results(otherwise()); }, {value.type(), position.type()});
  return Sorted{out[0], out[1]};
}

}  // namespace torch_tpu::lowering
