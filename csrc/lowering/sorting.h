// Sorting in PyTorch's order (NaN is the largest), and the parts of the sorting family.
#pragma once

#include "lowering/call.h"
#include "lowering/registry.h"

namespace torch_tpu::lowering {

struct Sorted {
  Value values;
  Value indices;  // s32, or s64 for very long dimensions
};
Sorted sorted_along(Value value, int64_t dim, bool descending);

void register_order_statistics(Registry&);  // order_statistics.cc: median, mode, kthvalue
void register_search(Registry&);            // search.cc: searchsorted, bucketize, isin

}  // namespace torch_tpu::lowering
