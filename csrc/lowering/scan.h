// Running totals for an associative operation, in O(n) work and O(log n) depth.
#pragma once

#include <functional>

#include "lowering/call.h"

namespace torch_tpu::lowering {

// `combine` acts elementwise on two values of the same type, the earlier one first; `identity` is
// 0-d and leaves the other operand as it is. `value` has a dimension `dim`.
Value scan_along(Value value, int64_t dim, Value identity,
                 const std::function<Value(Value, Value)>& combine);

Value running_sum(Value value, int64_t dim);
Value running_max(Value value, int64_t dim);  // NaN wins
Value running_min(Value value, int64_t dim);  // NaN wins

}  // namespace torch_tpu::lowering
