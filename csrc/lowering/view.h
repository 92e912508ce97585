// Reading and writing strided views of a storage inside a program.
//
// A storage holds a row-major array, its base. A view is PyTorch's (sizes, strides, offset) over
// the base's elements, perhaps under another dtype. Where the view is a box of the base (slices,
// steps, splits, merges, permutations, expansion), it is read by reshape, slice, transpose and
// broadcast; anything else by a gather.
#pragma once

#include <array>
#include <optional>
#include <span>

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

// A view as a box of its base, in the base's own dimensions: of dimension k it takes every
// step[k]th element from start[k] on, span[k] being the distance from the first to behind the last
// one. Wherever the view is moved to, it is the same box at another start.
struct BaseBox {
  static constexpr size_t kMaxRank = 8;
  size_t rank = 0;
  std::array<int64_t, kMaxRank> start{}, span{}, step{};
  std::array<int64_t, kMaxRank> base{};  // the base's sizes
  std::array<int, kMaxRank> view_dim{};  // the view's dimension that runs here, or -1

  // Whether there is room to move along dimension k.
  bool moves(size_t k) const { return span[k] < base[k]; }
};

// nullopt when the view is no such box. Cheap, allocates nothing.
std::optional<BaseBox> base_box(std::span<const int64_t> base, std::span<const int64_t> sizes,
                                std::span<const int64_t> strides, int64_t offset);

// read_view and write_view for a box that starts at `start`: 0-d integers of one dtype, one per
// dimension of the base. The view's offset plays no part.
stablehlo::Value read_moving_view(stablehlo::Value base, const ViewSpec& view, const BaseBox& box,
                                  const stablehlo::Values& start);
stablehlo::Value write_moving_view(stablehlo::Value base, const ViewSpec& view, const BaseBox& box,
                                   const stablehlo::Values& start, stablehlo::Value update);

// The elements of `value` (row-major) under another dtype, as view(dtype) sees memory: same shape
// for equal widths, else 1-d.
stablehlo::Value retype(stablehlo::Value value, stablehlo::ElementType dtype);

}  // namespace torch_tpu::lowering
