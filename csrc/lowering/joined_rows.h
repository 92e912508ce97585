// What PyTorch joins to make matrices, seen apart again.
#pragma once

#include "lowering/call.h"

namespace torch_tpu::lowering {

// A matrix with its rows in the dimensions that they were joined from: what it is a reshape of. XLA
// for TPUs fuses a reduction over the columns with the product or the loss around it in those, but
// not across the reshape. Anything else, and everything for CPUs, is returned as it is.
Value rows_apart(Value matrix);

}  // namespace torch_tpu::lowering
