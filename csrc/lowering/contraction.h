// Dot products and convolutions as PyTorch means them: the one place that decides in which type
// products are accumulated and at which precision they are taken.
#pragma once

#include "lowering/call.h"

namespace torch_tpu::lowering {

// The type sums of products of `type` are kept in: 32 bits for anything narrower.
ElementType accumulation_type(ElementType type);

// Both operands have the same dtype; the result has its accumulation_type(). Products of float32,
// and of complex numbers made of it, are taken as the program's Float32Products say.
Value dot(Value lhs, Value rhs, const stablehlo::DotDims& dims);
Value convolve(Value lhs, Value rhs, const stablehlo::ConvolutionDims& dims,
               const stablehlo::ConvolutionWindow& window);

// A dot whose products are always those of float32: for operators that users do not think of as
// products of matrices.
Value exact_dot(Value lhs, Value rhs, const stablehlo::DotDims& dims);

// [..., m, k] x [..., k, n], all leading dimensions equal.
Value batched_matmul(Value lhs, Value rhs);

}  // namespace torch_tpu::lowering
