// Mixing the entries of tensors of bytes, in fixed point as PyTorch's CPU kernels do it.
#pragma once

#include "lowering/along_dimension.h"

namespace torch_tpu::lowering {

// As mix_along; sums are rounded to the nearest byte, and to the ends of the range beyond them.
Value mix_bytes_along(Value x, int64_t dim, const Taps& taps);

}  // namespace torch_tpu::lowering
