// Element types and tensor types of StableHLO, and their textual form.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace torch_tpu::stablehlo {

enum class ElementType : uint8_t {
  kPred,
  kS8,
  kS16,
  kS32,
  kS64,
  kU8,
  kU16,
  kU32,
  kU64,
  kF8E4M3FN,
  kF8E5M2,
  kBF16,
  kF16,
  kF32,
  kF64,
  kC64,
  kC128,
};

using Dims = std::vector<int64_t>;

struct TensorType {
  ElementType dtype = ElementType::kF32;
  Dims dims;

  bool operator==(const TensorType&) const = default;
  int64_t rank() const { return static_cast<int64_t>(dims.size()); }
  int64_t numel() const;
};

// StableHLO's spelling: f32, bf16, i64, ui8, i1, complex<f32>, f8E4M3FN ...
std::string_view name(ElementType type);
// tensor<2x3xf32>
std::string to_string(const TensorType& type);
std::string to_string(std::span<const int64_t> dims);  // [2, 3]

// Bytes one element takes in host memory (bool: 1).
size_t byte_size(ElementType type);
int bit_width(ElementType type);

bool is_bool(ElementType type);
bool is_signed_int(ElementType type);
bool is_unsigned_int(ElementType type);
bool is_integer(ElementType type);  // signed or unsigned, not bool
bool is_float(ElementType type);    // real floating point of any width
bool is_complex(ElementType type);
// complex64 -> float32, complex128 -> float64, others unchanged.
ElementType real_type(ElementType type);
// float32 -> complex64, float64 -> complex128; narrower floats go to complex64.
ElementType complex_type(ElementType type);
// The unsigned integer type of the same width (of a real type).
ElementType bits_type(ElementType type);

int64_t product(std::span<const int64_t> dims);

}  // namespace torch_tpu::stablehlo
