#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "stablehlo/attributes.h"
#include "stablehlo/check.h"
#include "stablehlo/number_format.h"

namespace torch_tpu::stablehlo {
namespace {

// Longer 1-d constants are printed as bytes.
constexpr int64_t kMaxListed = 64;

Value emit(Builder& b, const TensorType& type, std::string_view elements) {
  std::string attributes = "value = dense<";
  if (type.numel() != 0) attributes += elements;
  attributes += "> : ";
  attributes += to_string(type);
  return b.append1("stablehlo.constant", {}, attributes, type);
}

[[noreturn]] void refuse(std::string_view op, const std::string& value, ElementType type) {
  fail(op, value + " is not representable in " + std::string(name(type)));
}

// The integer `value` as the two's complement bits of the type.
int64_t checked_integer(std::string_view op, int64_t value, ElementType type) {
  const bool fits = type == ElementType::kU64
                        ? value >= 0
                        : value >= integer_min(type) && value <= integer_max(type);
  if (!fits) refuse(op, std::to_string(value), type);
  return value;
}

int64_t checked_integer(std::string_view op, double value, ElementType type) {
  const bool is_u64 = type == ElementType::kU64;
  const double limit = is_u64 ? 0x1p64 : 0x1p63;
  if (!(value == std::floor(value) && value >= -0x1p63 && value < limit)) {
    refuse(op, std::to_string(value), type);
  }
  if (is_u64 && value >= 0) return static_cast<int64_t>(static_cast<uint64_t>(value));
  return checked_integer(op, static_cast<int64_t>(value), type);
}

std::string complex_text(std::complex<double> value, ElementType type) {
  const ElementType part = real_type(type);
  return "(" + float_text(value.real(), part) + ", " + float_text(value.imag(), part) + ")";
}

template <typename T>
std::string number_text(std::string_view op, T value, ElementType type) {
  if (is_complex(type)) return complex_text(static_cast<double>(value), type);
  if (is_float(type)) return float_text(static_cast<double>(value), type);
  return integer_text(checked_integer(op, value, type), type);
}

template <typename T>
void store_number(std::string_view op, T value, ElementType type, char* out) {
  // Every host PJRT runs on, and MLIR's byte form, are little-endian.
  uint64_t bits = 0;
  if (is_complex(type)) {
    bits = encode_float(static_cast<double>(value), real_type(type)).bits;
    std::memset(out, 0, byte_size(type));
    std::memcpy(out, &bits, byte_size(type) / 2);
    return;
  }
  bits = is_float(type) ? encode_float(static_cast<double>(value), type).bits
                        : static_cast<uint64_t>(checked_integer(op, value, type));
  std::memcpy(out, &bits, byte_size(type));
}

template <typename T>
Value constant_numbers(Builder& b, std::span<const T> values, const TensorType& type) {
  constexpr std::string_view kOp = "constant";
  if (static_cast<int64_t>(values.size()) != type.numel()) {
    fail(kOp, to_string(type) + " has " + std::to_string(type.numel()) + " elements, got " +
                  std::to_string(values.size()));
  }
  if (values.size() == 1) return emit(b, type, number_text(kOp, values[0], type.dtype));
  if (type.rank() == 1 && type.numel() <= kMaxListed) {
    std::string text = "[";
    for (size_t i = 0; i < values.size(); ++i) {
      if (i) text += ", ";
      text += number_text(kOp, values[i], type.dtype);
    }
    return emit(b, type, text + "]");
  }
  const size_t size = byte_size(type.dtype);
  std::string bytes(values.size() * size, '\0');
  for (size_t i = 0; i < values.size(); ++i) {
    store_number(kOp, values[i], type.dtype, bytes.data() + i * size);
  }
  return constant_bytes(b, bytes.data(), type);
}

// Nested lists: StableHLO's text has no byte form for bool.
void append_bools(std::string& out, const char* data, const Dims& dims, size_t level) {
  if (level == dims.size()) {
    out += boolean(*data != 0);
    return;
  }
  const int64_t stride = product(std::span(dims).subspan(level + 1));
  out += '[';
  for (int64_t i = 0; i < dims[level]; ++i) {
    if (i) out += ", ";
    append_bools(out, data + i * stride, dims, level + 1);
  }
  out += ']';
}

}  // namespace

Value splat(Builder& b, const TensorType& type, double value) {
  return emit(b, type, number_text("splat", value, type.dtype));
}

Value splat(Builder& b, const TensorType& type, int64_t value) {
  return emit(b, type, number_text("splat", value, type.dtype));
}

Value splat(Builder& b, const TensorType& type, uint64_t value) {
  if (type.dtype == ElementType::kU64) {
    return emit(b, type, integer_text(static_cast<int64_t>(value), type.dtype));
  }
  if (value <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return splat(b, type, static_cast<int64_t>(value));
  }
  if (is_integer(type.dtype) || is_bool(type.dtype)) {
    refuse("splat", std::to_string(value), type.dtype);
  }
  return splat(b, type, static_cast<double>(value));
}

Value splat(Builder& b, const TensorType& type, bool value) {
  return splat(b, type, static_cast<int64_t>(value));
}

Value splat(Builder& b, const TensorType& type, std::complex<double> value) {
  if (is_complex(type.dtype)) return emit(b, type, complex_text(value, type.dtype));
  if (value.imag() != 0) {
    refuse("splat", "a complex number with imaginary part " + std::to_string(value.imag()),
           type.dtype);
  }
  return splat(b, type, value.real());
}

Value constant(Builder& b, std::span<const int64_t> values, ElementType dtype) {
  return constant_numbers(b, values, {dtype, {static_cast<int64_t>(values.size())}});
}

Value constant(Builder& b, std::span<const int64_t> values, const TensorType& type) {
  return constant_numbers(b, values, type);
}

Value constant(Builder& b, std::span<const double> values, const TensorType& type) {
  return constant_numbers(b, values, type);
}

Value constant_bytes(Builder& b, const void* data, const TensorType& type) {
  const auto count = static_cast<size_t>(type.numel());
  if (count == 0) return emit(b, type, "");
  const auto* bytes = static_cast<const char*>(data);
  const size_t size = byte_size(type.dtype);
  // All elements equal: the element stands for them all.
  const bool uniform = std::memcmp(bytes, bytes + size, (count - 1) * size) == 0;
  if (is_bool(type.dtype)) {
    std::string text;
    append_bools(text, bytes, uniform ? Dims{} : type.dims, 0);
    return emit(b, type, text);
  }
  constexpr char kHex[] = "0123456789ABCDEF";
  const size_t used = uniform ? size : count * size;
  std::string text;
  text.reserve(2 * used + 4);
  text += "\"0x";
  for (size_t i = 0; i < used; ++i) {
    const auto byte = static_cast<unsigned char>(bytes[i]);
    text += kHex[byte >> 4];
    text += kHex[byte & 15];
  }
  text += '"';
  return emit(b, type, text);
}

Value iota(Builder& b, const TensorType& type, int64_t dimension) {
  constexpr std::string_view kOp = "stablehlo.iota";
  if (is_bool(type.dtype)) fail(kOp, "expected a number type, got " + to_string(type));
  check_dimension(kOp, "dimension", dimension, type.rank());
  return b.append1(kOp, {}, "iota_dimension = " + i64(dimension), type);
}

Value lowest(Builder& b, const TensorType& type) {
  if (is_complex(type.dtype)) fail("lowest", "complex numbers have no order");
  if (!is_float(type.dtype)) return splat(b, type, integer_min(type.dtype));
  return splat(b, type,
               has_infinity(type.dtype) ? -std::numeric_limits<double>::infinity()
                                        : -largest_finite(type.dtype));
}

Value highest(Builder& b, const TensorType& type) {
  if (is_complex(type.dtype)) fail("highest", "complex numbers have no order");
  if (type.dtype == ElementType::kU64) {
    return splat(b, type, std::numeric_limits<uint64_t>::max());
  }
  if (!is_float(type.dtype)) return splat(b, type, integer_max(type.dtype));
  return splat(b, type,
               has_infinity(type.dtype) ? std::numeric_limits<double>::infinity()
                                        : largest_finite(type.dtype));
}

}  // namespace torch_tpu::stablehlo
