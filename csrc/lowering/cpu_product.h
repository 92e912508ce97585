// How products of matrices are written for a CPU: XLA's compiler for CPUs has a fast routine, but
// does not find it for every form of the same product.
#pragma once

#include "lowering/call.h"

namespace torch_tpu::lowering {

struct DotOperands {
  Value lhs, rhs;
  stablehlo::DotDims dims;
};

// The same product in the form that is fastest there; for TPUs the one that was given.
//
// - Both sides have the rows of a batch first, as in a weight's gradient: a contraction over two
//   dimensions. A plain transpose would be folded into the product, which then reads both sides as
//   they are and reaches half of the speed; with two dimensions, a transposed copy is made first (a
//   tenth of the product's time).
// - One side is a vector: the matrix as it is stored. A transpose would not be folded into the
//   product here, but computed inside of it, together with all that the vector is made of, for each
//   element anew.
// - A batch of products whose right sides are transposed, as the keys of attention are: the right
//   sides as they are stored, which saves a transposed copy.
DotOperands product_for_cpu(const DotOperands& product);

}  // namespace torch_tpu::lowering
