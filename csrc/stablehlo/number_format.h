// Encodes numbers as the bits and as the text of an element type.
#pragma once

#include "stablehlo/types.h"

namespace torch_tpu::stablehlo {

// `value` rounded to a float type, to nearest, ties to even.
struct EncodedFloat {
  uint64_t bits;  // the encoding, in the low bits
  double value;   // the number it stands for
};
EncodedFloat encode_float(double value, ElementType type);
// The largest finite number of a float type.
double largest_finite(ElementType type);
bool has_infinity(ElementType type);

// A float attribute's element: a decimal that reads back exactly, or the bits in hexadecimal.
std::string float_text(double value, ElementType type);
// An integer of an integer type or bool, given by its 64-bit two's complement bits.
std::string integer_text(int64_t value, ElementType type);

// The range of an integer type or bool, as 64-bit two's complement bits.
int64_t integer_min(ElementType type);
int64_t integer_max(ElementType type);

}  // namespace torch_tpu::stablehlo
