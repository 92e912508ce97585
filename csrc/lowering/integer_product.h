// Dot products and convolutions of 64-bit integers, in terms of other operations: the compiler for
// TPUs has neither.
#pragma once

#include "lowering/call.h"

namespace torch_tpu::lowering {

// Whether a product of this type has to be written out.
bool needs_written_out_product(ElementType type);

// What dot_general and convolution compute, the result in the operands' type.
Value integer_dot(Value lhs, Value rhs, const stablehlo::DotDims& dims);
Value integer_convolution(Value lhs, Value rhs, const stablehlo::ConvolutionDims& dims,
                          const stablehlo::ConvolutionWindow& window);

}  // namespace torch_tpu::lowering
