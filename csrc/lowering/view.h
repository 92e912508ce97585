// Reading and writing strided views of a storage inside a program.
//
// A storage holds a row-major array, its base. A view is PyTorch's (sizes, strides, offset) over
// the base's elements, perhaps under another dtype. Where the view is a box of the base (slices,
// steps, splits, merges, permutations, expansion), it is read by reshape, slice, transpose and
// broadcast; anything else by a gather.
#pragma once

#include <optional>

#include "stablehlo/builder.h"

namespace torch_tpu::lowering {

struct ViewSpec {
  stablehlo::ElementType dtype = stablehlo::ElementType::kF32;
  stablehlo::Dims sizes;
  stablehlo::Dims strides;
  int64_t offset = 0;

  bool operator==(const ViewSpec&) const = default;
};

// The view has the base's own dtype, shape and order.
bool is_identity(const stablehlo::TensorType& base, const ViewSpec& view);

// For a dense, non-overlapping (sizes, strides): the dimensions from the largest stride to the
// smallest, so that sizes in this order are the row-major shape of the memory. nullopt otherwise.
std::optional<stablehlo::Dims> dense_order(std::span<const int64_t> sizes,
                                           std::span<const int64_t> strides);

// The view's value, with shape view.sizes and dtype view.dtype.
stablehlo::Value read_view(stablehlo::Value base, const ViewSpec& view);

// The base after `update` (shape view.sizes, dtype view.dtype) was written through the view. The
// result has the base's type.
stablehlo::Value write_view(stablehlo::Value base, const ViewSpec& view, stablehlo::Value update);

// The elements of `value` (row-major) under another dtype, as view(dtype) sees memory: same shape
// for equal widths, else 1-d.
stablehlo::Value retype(stablehlo::Value value, stablehlo::ElementType dtype);

}  // namespace torch_tpu::lowering
