// Sorting in PyTorch's order (NaN is the largest), and the parts of the sorting family.
#pragma once

#include <optional>

#include "lowering/call.h"
#include "lowering/registry.h"

namespace torch_tpu::lowering {

struct Sorted {
  Value values;
  Value indices;  // s32, or s64 for very long dimensions
};
Sorted sorted_along(Value value, int64_t dim, bool descending);

// packed_sort.cc: the same, if the values can be sorted together with their positions as integers,
// and if that is faster where the program is for; `otherwise` does without.
std::optional<Sorted> sorted_by_packing(Value value, Value position, int64_t dim, bool descending,
                                        const std::function<Sorted()>& otherwise);

// How many elements of `sequence` [n] or [B, n] lie before each of `values` [m] or [B, m], as s32;
// those that are equal to it count if `right`.
Value count_before(Value sequence, Value values, bool right);

void register_order_statistics(Registry&);  // order_statistics.cc: median, mode, kthvalue
void register_search(Registry&);            // search.cc: searchsorted, bucketize, isin
void register_histogram(Registry&);         // histogram.cc

}  // namespace torch_tpu::lowering
