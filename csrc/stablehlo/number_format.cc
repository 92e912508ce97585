#include "stablehlo/number_format.h"

#include <bit>
#include <charconv>
#include <cmath>
#include <limits>
#include <stdexcept>

namespace torch_tpu::stablehlo {
namespace {

struct FloatFormat {
  int exponent_bits;
  int mantissa_bits;
  bool infinity;  // without: all ones is the only NaN, the rest of the top binade is finite
};

FloatFormat format_of(ElementType type) {
  switch (type) {
    case ElementType::kF8E4M3FN:
      return {4, 3, false};
    case ElementType::kF8E5M2:
      return {5, 2, true};
    case ElementType::kBF16:
      return {8, 7, true};
    case ElementType::kF16:
      return {5, 10, true};
    case ElementType::kF32:
      return {8, 23, true};
    case ElementType::kF64:
      return {11, 52, true};
    default:
      break;
  }
  throw std::invalid_argument("float format: expected a float type, got " +
                              std::string(name(type)));
}

uint64_t exponent_mask(const FloatFormat& f) {
  return ((uint64_t{1} << f.exponent_bits) - 1) << f.mantissa_bits;
}

// The smallest magnitude that is not finite any more.
uint64_t first_special(const FloatFormat& f) {
  return f.infinity ? exponent_mask(f) : exponent_mask(f) | ((uint64_t{1} << f.mantissa_bits) - 1);
}

}  // namespace

EncodedFloat encode_float(double value, ElementType type) {
  const FloatFormat f = format_of(type);
  const uint64_t sign =
      std::signbit(value) ? uint64_t{1} << (f.exponent_bits + f.mantissa_bits) : 0;
  const uint64_t quiet_nan =
      f.infinity ? exponent_mask(f) | (uint64_t{1} << (f.mantissa_bits - 1)) : first_special(f);
  if (std::isnan(value)) return {quiet_nan, std::numeric_limits<double>::quiet_NaN()};

  const double magnitude = std::fabs(value);
  uint64_t bits = 0;
  double rounded = 0;
  if (std::isinf(value)) {
    bits = first_special(f);
  } else if (magnitude != 0) {
    const int bias = (1 << (f.exponent_bits - 1)) - 1;
    const int exponent = std::ilogb(magnitude);
    const int lowest_normal = 1 - bias;
    // The spacing of the type's numbers here is 2^quantum.
    const int quantum = (exponent > lowest_normal ? exponent : lowest_normal) - f.mantissa_bits;
    const double significand = std::nearbyint(std::ldexp(magnitude, -quantum));
    rounded = std::ldexp(significand, quantum);
    bits = static_cast<uint64_t>(significand);
    if (exponent >= lowest_normal) {
      // The leading one carries into the exponent field, as does a significand that rounded up.
      bits += static_cast<uint64_t>(exponent + bias - 1) << f.mantissa_bits;
    }
  }
  if (bits >= first_special(f)) {
    bits = first_special(f);
    rounded = f.infinity ? std::numeric_limits<double>::infinity()
                         : std::numeric_limits<double>::quiet_NaN();
    if (!f.infinity) return {bits, rounded};
  }
  return {sign | bits, std::copysign(rounded, value)};
}

bool has_infinity(ElementType type) { return format_of(type).infinity; }

double largest_finite(ElementType type) {
  const FloatFormat f = format_of(type);
  const int bias = (1 << (f.exponent_bits - 1)) - 1;
  const uint64_t bits = first_special(f) - 1;
  const auto exponent = static_cast<int>(bits >> f.mantissa_bits) - bias;
  const uint64_t mantissa = bits & ((uint64_t{1} << f.mantissa_bits) - 1);
  return std::ldexp(static_cast<double>(mantissa | (uint64_t{1} << f.mantissa_bits)),
                    exponent - f.mantissa_bits);
}

std::string float_text(double value, ElementType type) {
  const EncodedFloat encoded = encode_float(value, type);
  char buffer[40];
  if (!std::isfinite(encoded.value) || std::fpclassify(encoded.value) == FP_SUBNORMAL) {
    std::string out = "0x";
    const auto end = std::to_chars(buffer, buffer + sizeof(buffer), encoded.bits, 16);
    const auto digits = static_cast<size_t>(end.ptr - buffer);
    const size_t width = static_cast<size_t>(bit_width(type)) / 4;
    out.append(width - digits, '0');
    for (size_t i = 0; i < digits; ++i) {
      out += buffer[i] >= 'a' ? static_cast<char>(buffer[i] - 'a' + 'A') : buffer[i];
    }
    return out;
  }
  // The rounded number is exact in a double, and so is the shortest decimal that reads back to it.
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), encoded.value);
  std::string out(buffer, end.ptr);
  if (out.find('.') == std::string::npos) {
    const size_t exponent = out.find('e');
    out.insert(exponent == std::string::npos ? out.size() : exponent, ".0");
  }
  return out;
}

std::string integer_text(int64_t value, ElementType type) {
  if (is_bool(type)) return value ? "true" : "false";
  return is_unsigned_int(type) ? std::to_string(static_cast<uint64_t>(value))
                               : std::to_string(value);
}

int64_t integer_min(ElementType type) {
  if (!is_signed_int(type)) return 0;
  return std::numeric_limits<int64_t>::min() >> (64 - bit_width(type));
}

int64_t integer_max(ElementType type) {
  if (is_bool(type)) return 1;
  const auto ones = ~uint64_t{0} >> (64 - bit_width(type));
  return static_cast<int64_t>(is_signed_int(type) ? ones >> 1 : ones);
}

}  // namespace torch_tpu::stablehlo
