// Picking and replacing elements by index tensors: the pieces the indexing rules share.
#pragma once

#include "lowering/registry.h"

namespace torch_tpu::lowering {

// What becomes of an element that an update meets.
enum class Merge { kAssign, kAdd, kMultiply, kMax, kMin };

// PyTorch's advanced indexing of a tensor of a given shape.
struct AdvancedIndex {
  Dims operand;      // the shape that is indexed
  Dims dims;         // the dimensions that have an index tensor
  Value starts;      // [broadcast index shape..., dims.size()]; empty when there is no index
  Dims window_dims;  // the result's dimensions that are the operand's other ones
  Dims result;       // the shape of the indexed tensor
};

enum class Negative { kWrap, kAsIs };

// `indices` holds an integer tensor or an empty Value (":") per dimension; trailing ones may be
// left out. Throws Unsupported for masks, whose result has no static shape.
AdvancedIndex advanced_index(const Dims& operand, const Values& indices, Negative negative);
// The same for one dimension.
AdvancedIndex dimension_index(const Dims& operand, int64_t dim, Value index, Negative negative);

Value take_elements(Value self, const AdvancedIndex& index);
// `updates` is broadcast to the shape of the indexed tensor. Indices out of range are passed over.
Value put_elements(Value self, const AdvancedIndex& index, Value updates, Merge merge);

// out[i][j] = self[index[i][j]][j], for dim = 0.
Value take_along(Value self, int64_t dim, Value index);
// self[index[i][j]][j] is combined with src[i][j], for dim = 0.
Value put_along(Value self, int64_t dim, Value index, Value src, Merge merge);

// The value that leaves others unchanged under `merge`.
Value identity(Builder& builder, const TensorType& type, Merge merge);

// 0, or false, in every element.
Value zeros(Builder& builder, ElementType dtype, const Dims& dims);

// Gives 0-d tensors one dimension.
Value at_least_1d(Value value);

// Which segment each of the positions 0..count-1 lies in, given where segments start (rising; empty
// segments share their start with the next one).
Value segment_of(Value starts, int64_t count);

void register_scatter(Registry&);
void register_embedding(Registry&);

}  // namespace torch_tpu::lowering
