// How products of matrices are written for a TPU: in the dimensions their sides come in.
#pragma once

#include "lowering/cpu_product.h"

namespace torch_tpu::lowering {

// PyTorch joins the dimensions of a batch to make matrices of them, and divides the result again.
// XLA for TPUs fuses what is before and behind a product into it, and chooses how the sides are
// stored, but not across joining and dividing. This is the same product of the sides before they
// were joined; so its result's first dimensions are apart too, unless they are contracted. Empty
// handles where there is nothing to undo, and for CPUs.
//
// - The rows of the left side of a product of matrices, as in a linear layer.
// - The rows of both sides where they are contracted, as in a weight's gradient.
// - The batch of a batch of products, as in attention.
DotOperands product_apart(const DotOperands& product);

}  // namespace torch_tpu::lowering
