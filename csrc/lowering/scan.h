// Running totals for an associative operation, in O(n) work and O(log n) depth.
#pragma once

#include <functional>

#include "lowering/call.h"

namespace torch_tpu::lowering {

// Whether `combine` below is an operation of StableHLO or made of several: TPUs' compiler takes the
// former as the body of a reduction over windows.
enum class Combination { kOneOperation, kCompound };

// `combine` acts elementwise on two values of the same type, the earlier one first; `identity` is
// 0-d and leaves the other operand as it is. `value` has a dimension `dim`.
Value scan_along(Value value, int64_t dim, Value identity,
                 const std::function<Value(Value, Value)>& combine,
                 Combination kind = Combination::kOneOperation);

Value running_sum(Value value, int64_t dim);
Value running_max(Value value, int64_t dim);  // NaN wins
Value running_min(Value value, int64_t dim);  // NaN wins

}  // namespace torch_tpu::lowering
