#include "stablehlo/types.h"

#include <stdexcept>

namespace torch_tpu::stablehlo {

int64_t product(std::span<const int64_t> dims) {
  int64_t n = 1;
  for (const int64_t d : dims) n *= d;
  return n;
}

int64_t TensorType::numel() const { return product(dims); }

std::string_view name(ElementType type) {
  switch (type) {
    case ElementType::kPred:
      return "i1";
    case ElementType::kS8:
      return "i8";
    case ElementType::kS16:
      return "i16";
    case ElementType::kS32:
      return "i32";
    case ElementType::kS64:
      return "i64";
    case ElementType::kU8:
      return "ui8";
    case ElementType::kU16:
      return "ui16";
    case ElementType::kU32:
      return "ui32";
    case ElementType::kU64:
      return "ui64";
    case ElementType::kF8E4M3FN:
      return "f8E4M3FN";
    case ElementType::kF8E5M2:
      return "f8E5M2";
    case ElementType::kBF16:
      return "bf16";
    case ElementType::kF16:
      return "f16";
    case ElementType::kF32:
      return "f32";
    case ElementType::kF64:
      return "f64";
    case ElementType::kC64:
      return "complex<f32>";
    case ElementType::kC128:
      return "complex<f64>";
  }
  return "?";
}

std::string to_string(const TensorType& type) {
  std::string out = "tensor<";
  for (const int64_t d : type.dims) {
    out += std::to_string(d);
    out += 'x';
  }
  out += name(type.dtype);
  out += '>';
  return out;
}

std::string to_string(std::span<const int64_t> dims) {
  std::string out = "[";
  for (size_t i = 0; i < dims.size(); ++i) {
    if (i) out += ", ";
    out += std::to_string(dims[i]);
  }
  return out + "]";
}

int bit_width(ElementType type) {
  switch (type) {
    case ElementType::kPred:
      return 1;
    case ElementType::kS8:
    case ElementType::kU8:
    case ElementType::kF8E4M3FN:
    case ElementType::kF8E5M2:
      return 8;
    case ElementType::kS16:
    case ElementType::kU16:
    case ElementType::kBF16:
    case ElementType::kF16:
      return 16;
    case ElementType::kS32:
    case ElementType::kU32:
    case ElementType::kF32:
      return 32;
    case ElementType::kS64:
    case ElementType::kU64:
    case ElementType::kF64:
    case ElementType::kC64:
      return 64;
    case ElementType::kC128:
      return 128;
  }
  return 0;
}

size_t byte_size(ElementType type) {
  return type == ElementType::kPred ? 1 : static_cast<size_t>(bit_width(type)) / 8;
}

bool is_bool(ElementType type) { return type == ElementType::kPred; }
bool is_signed_int(ElementType type) {
  return type >= ElementType::kS8 && type <= ElementType::kS64;
}
bool is_unsigned_int(ElementType type) {
  return type >= ElementType::kU8 && type <= ElementType::kU64;
}
bool is_integer(ElementType type) { return is_signed_int(type) || is_unsigned_int(type); }
bool is_float(ElementType type) {
  return type >= ElementType::kF8E4M3FN && type <= ElementType::kF64;
}
bool is_complex(ElementType type) {
  return type == ElementType::kC64 || type == ElementType::kC128;
}

ElementType real_type(ElementType type) {
  if (type == ElementType::kC64) return ElementType::kF32;
  if (type == ElementType::kC128) return ElementType::kF64;
  return type;
}

ElementType complex_type(ElementType type) {
  if (is_complex(type)) return type;
  return type == ElementType::kF64 ? ElementType::kC128 : ElementType::kC64;
}

ElementType bits_type(ElementType type) {
  switch (bit_width(type)) {
    case 1:
    case 8:
      return ElementType::kU8;
    case 16:
      return ElementType::kU16;
    case 32:
      return ElementType::kU32;
    case 64:
      if (!is_complex(type)) return ElementType::kU64;
      break;
    default:
      break;
  }
  throw std::invalid_argument("bits_type: no unsigned integer is as wide as " +
                              std::string(name(type)));
}

}  // namespace torch_tpu::stablehlo
