// Products of many matrices whose sizes are only known on the device (mixture of experts).
#pragma once

#include "lowering/call.h"

namespace torch_tpu::lowering {

// torch._grouped_mm: `offsets` (s32[groups]) are the ends of the groups along the ragged
// dimension.
//   [m, k] x [g, k, n] -> [m, n]     rows of lhs are grouped
//   [g, m, k] x [k, n] -> [m, n]     columns of rhs are grouped
//   [m, k] x [k, n]    -> [g, m, n]  the contracted dimension is grouped
//   [g, m, k] x [g, k, n] -> [g, m, n], no offsets
// What lies past the last offset belongs to no group: zero in the result. Offsets need not be
// read back by the host; the work grows with the rows, not with rows times groups.
Value grouped_matmul(Value lhs, Value rhs, Value offsets);

}  // namespace torch_tpu::lowering
