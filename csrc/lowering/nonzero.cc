// The places of elements that are not zero, as far as they fit a shape known beforehand.
#include <limits>

#include "lowering/families.h"
#include "lowering/indexing.h"
#include "lowering/reduction.h"
#include "lowering/scan.h"

namespace torch_tpu::lowering {

namespace sh = stablehlo;

namespace {

// Coordinates of the first `size` non-zero elements in row-major order, one row each; rows that
// are left hold fill_value.
Values nonzero_static(Call& call) {
  Builder& b = call.builder();
  const Value self = call.tensor("self");
  const int64_t size = call.integer("size");
  const Value fill =
      sh::scalar(b, ElementType::kS64, call.has("fill_value") ? call.integer("fill_value") : -1);
  if (size == 0 || self.rank() == 0) return {zeros(b, ElementType::kS64, {size, self.rank()})};
  if (self.numel() == 0) return {sh::broadcast_to(fill, {size, self.rank()})};

  // Accelerators emulate 64-bit arithmetic: positions have 32 bits wherever they suffice.
  const bool small = std::max(self.numel(), size) < std::numeric_limits<int32_t>::max();
  const ElementType type = small ? ElementType::kS32 : ElementType::kS64;
  const Value flags = sh::flatten(is_nonzero(self));
  const Value count = running_sum(sh::convert(flags, type), 0);
  // What is zero goes beyond the end, which scatter passes over.
  const Value row =
      sh::select(flags, sh::subtract(count, sh::full_like(count, 1)), sh::full_like(count, size));
  const Value none = sh::splat(b, {type, {size}}, int64_t{-1});
  const Value place = put_elements(none, advanced_index({size}, {row}, Negative::kAsIs),
                                   sh::iota(b, {type, {self.numel()}}, 0), Merge::kAssign);
  const Value absent = sh::lt(place, sh::full_like(place, 0));
  const Value fills = sh::broadcast_to(fill, {size});

  Values columns;
  int64_t below = self.numel();
  for (const int64_t extent : self.dims()) {
    below /= extent;
    Value column = below == 1 ? place : sh::divide(place, sh::full_like(place, below));
    if (!columns.empty()) column = sh::remainder(column, sh::full_like(place, extent));
    column = sh::select(absent, fills, sh::convert(column, ElementType::kS64));
    columns.push_back(sh::expand_dim(column, 1));
  }
  return {columns.size() == 1 ? columns[0] : sh::concatenate(columns, 1)};
}

}  // namespace

void register_nonzero(Registry& r) { r.add("aten::nonzero_static", nonzero_static); }

}  // namespace torch_tpu::lowering
