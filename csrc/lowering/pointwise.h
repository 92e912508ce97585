// The parts of the pointwise family, and the few functions other families write formulas with.
#pragma once

#include "lowering/registry.h"

namespace torch_tpu::lowering {

void register_arithmetic(Registry&);   // pointwise_arithmetic.cc: two and three operands
void register_unary(Registry&);        // pointwise_unary.cc: one operand
void register_comparison(Registry&);   // pointwise_comparison.cc: comparisons, logic, bits, where
void register_special(Registry&);      // pointwise_special.cc: error and gamma functions
void register_polynomials(Registry&);  // pointwise_polynomial.cc: Chebyshev, Hermite, ...
void register_incomplete_gamma(Registry&);  // pointwise_incomplete_gamma.cc: igamma, igammac
void register_fake_quantize(Registry&);     // fake_quantize.cc
void register_bessel(Registry&);            // pointwise_bessel.cc: I, J, K and Y of orders 0 and 1

// Whether the sign bit is set (also of -0 and negative NaN).
Value sign_bit(Value);
// The sum of (q + k)^-s over k >= 0.
Value hurwitz_zeta(Value s, Value q);
// x^y. Of complex numbers that are zero, not finite or too large it is exp(y log(x)), as in C.
Value power_of(Value x, Value y);
// Of a complex number with an infinite part they are infinite, whatever the other part is.
Value magnitude(Value);
Value logarithm(Value);
Value logarithm(Value x, double base);
// Of complex numbers, on the side of a branch cut that the sign of a zero says.
Value square_root(Value);
Value arc_sine(Value);
Value arc_cosine(Value);
Value arc_tangent(Value);
Value area_sine(Value);
Value area_cosine(Value);
Value area_tangent(Value);
// The fraction dropped; signed zeros and infinities stay.
Value truncate(Value);
// Division rounded as PyTorch's rounding_mode: "" (true division), "trunc" or "floor".
Value divide_rounded(Value a, Value b, std::string_view mode);

}  // namespace torch_tpu::lowering
