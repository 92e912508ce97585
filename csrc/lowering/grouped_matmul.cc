#include "lowering/grouped_matmul.h"

#include <algorithm>

#include "lowering/contraction.h"

namespace torch_tpu::lowering {

using namespace stablehlo;

namespace {

constexpr int64_t kTile = 128;

// The ragged dimension is cut into tiles; a (tile, group) pair that meets is one step of a loop.
// The number of steps, at most tiles + groups - 1, is known on the device only.
struct Steps {
  Value starts, ends;  // s32[groups]: rows of each group
  Value first_tile;    // s32[groups]
  Value first_step;    // s32[groups]
  Value last_step;     // s32[groups], exclusive
  Value count;         // s32[]
  int64_t tile = 0;
  int64_t padded = 0;  // length of the ragged dimension, a multiple of `tile`
};

// Inclusive running sum of a short 1-d value, as a product with a triangle.
Value running_sum(Value x) {
  const int64_t n = x.dim(0);
  const TensorType square{x.dtype(), {n, n}};
  Builder& b = x.builder();
  const Value upto = le(iota(b, square, 1), iota(b, square, 0));
  const Value rows = broadcast_in_dim(x, {n, n}, {1});
  return reduce_sum(select(upto, rows, full_like(rows, 0)), {1});
}

Value divide_by(Value x, int64_t divisor) { return divide(x, full_like(x, divisor)); }

Steps plan(Value offsets, int64_t length) {
  Steps s;
  const int64_t groups = offsets.dim(0);
  Builder& b = offsets.builder();
  s.tile = std::clamp<int64_t>(length, 1, kTile);
  s.padded = std::max<int64_t>((length + s.tile - 1) / s.tile, 1) * s.tile;
  s.ends = clamp(scalar(b, offsets.dtype(), 0), offsets, scalar(b, offsets.dtype(), length));
  s.starts = pad(slice(s.ends, {0}, {groups - 1}), scalar(b, offsets.dtype(), 0), {1}, {0});
  s.first_tile = divide_by(s.starts, s.tile);
  const Value one = full_like(s.ends, 1);
  const Value last_tile = divide_by(subtract(s.ends, one), s.tile);
  const Value tiles = add(subtract(last_tile, s.first_tile), one);
  const Value used = select(gt(s.ends, s.starts), tiles, full_like(tiles, 0));
  s.last_step = running_sum(used);
  s.first_step = subtract(s.last_step, used);
  s.count = reshape(slice(s.last_step, {groups - 1}, {groups}), {});
  return s;
}

Value element(Value vector, Value index) {
  return reshape(dynamic_slice(vector, {index}, {1}), {});
}

// Calls `body(row, group, mask, accumulator)` for each step: `row` is where the tile begins and
// `mask` (bool[tile]) tells which of its rows belong to the group.
Value for_each_step(
    const Steps& s, Value accumulator,
    const std::function<Value(Value row, Value group, Value mask, Value accumulator)>& body) {
  Builder& b = accumulator.builder();
  const ElementType index = s.ends.dtype();
  const auto condition = [&](const Values& state) -> Values { return {lt(state[0], s.count)}; };
  const auto step = [&](const Values& state) -> Values {
    const Value step_index = state[0];
    const Value passed = le(s.last_step, broadcast_to(step_index, s.last_step.dims()));
    const Value group = reduce_sum(convert(passed, index), {0});
    const Value tile =
        add(element(s.first_tile, group), subtract(step_index, element(s.first_step, group)));
    const Value row = multiply(tile, scalar(b, index, s.tile));
    const TensorType rows_type{index, {s.tile}};
    const Value rows = add(iota(b, rows_type, 0), broadcast_to(row, rows_type.dims));
    const Value mask = and_(ge(rows, broadcast_to(element(s.starts, group), rows.dims())),
                            lt(rows, broadcast_to(element(s.ends, group), rows.dims())));
    return {add(step_index, scalar(b, index, 1)), body(row, group, mask, state[1])};
  };
  return while_({scalar(b, index, 0), accumulator}, condition, step)[1];
}

Value zero_like_index(Value index) { return scalar(index.builder(), index.dtype(), 0); }

// Zero past the end of the ragged dimension, so that a tile never reaches outside.
Value pad_rows(Value x, int64_t padded) {
  return pad(x, scalar(x.builder(), x.dtype(), 0), {0, 0}, {padded - x.dim(0), 0});
}

// The rows of `x` that the mask leaves, others zero (even where they are not finite).
Value masked(Value x, Value mask) {
  return select(broadcast_in_dim(mask, x.dims(), {0}), x, full_like(x, 0));
}

// [m, k] x [g, k, n], rows grouped.
Value grouped_rows(Value lhs, Value rhs, Value offsets) {
  Builder& b = lhs.builder();
  const int64_t m = lhs.dim(0), k = lhs.dim(1), n = rhs.dim(2);
  const Steps s = plan(offsets, m);
  const Value rows = pad_rows(lhs, s.padded);
  const Value zero = splat(b, {accumulation_type(lhs.dtype()), {s.padded, n}}, 0);
  const Value out = for_each_step(s, zero, [&](Value row, Value group, Value mask, Value acc) {
    const Value none = zero_like_index(row);
    const Value tile = masked(dynamic_slice(rows, {row, none}, {s.tile, k}), mask);
    const Value weight = reshape(dynamic_slice(rhs, {group, none, none}, {1, k, n}), {k, n});
    const Value before = dynamic_slice(acc, {row, none}, {s.tile, n});
    // A tile shared by groups is visited once for each.
    const Value after =
        select(broadcast_in_dim(mask, before.dims(), {0}), batched_matmul(tile, weight), before);
    return dynamic_update_slice(acc, after, {row, none});
  });
  return slice(out, {0, 0}, {m, n});
}

// [k, m]^T x [k, n], the contracted dimension grouped.
Value grouped_contraction(Value lhs, Value rhs, Value offsets) {
  Builder& b = lhs.builder();
  const int64_t k = lhs.dim(0), m = lhs.dim(1), n = rhs.dim(1), groups = offsets.dim(0);
  const Steps s = plan(offsets, k);
  const Value left = pad_rows(lhs, s.padded), right = pad_rows(rhs, s.padded);
  const Value zero = splat(b, {accumulation_type(lhs.dtype()), {groups, m, n}}, 0);
  return for_each_step(s, zero, [&](Value row, Value group, Value mask, Value acc) {
    const Value none = zero_like_index(row);
    const Value l = masked(dynamic_slice(left, {row, none}, {s.tile, m}), mask);
    const Value r = masked(dynamic_slice(right, {row, none}, {s.tile, n}), mask);
    const Value product = dot(l, r, {.lhs_contracting = {0}, .rhs_contracting = {0}});
    const Value before = dynamic_slice(acc, {group, none, none}, {1, m, n});
    const Value after = add(before, reshape(product, {1, m, n}));
    return dynamic_update_slice(acc, after, {group, none, none});
  });
}

}  // namespace

Value grouped_matmul(Value lhs, Value rhs, Value offsets) {
  if (lhs.rank() == 3 && rhs.rank() == 3) return batched_matmul(lhs, rhs);
  if (!offsets || offsets.rank() != 1 || offsets.dim(0) == 0) {
    throw Unsupported("_grouped_mm: expected offsets with one element for each group");
  }
  offsets = convert(offsets, ElementType::kS32);
  if (rhs.rank() == 3) return grouped_rows(lhs, rhs, offsets);
  const Value columns = transpose(rhs, {1, 0});
  if (lhs.rank() == 3) {
    return transpose(grouped_rows(columns, transpose(lhs, {0, 2, 1}), offsets), {1, 0});
  }
  return grouped_contraction(transpose(lhs, {1, 0}), rhs, offsets);
}

}  // namespace torch_tpu::lowering
