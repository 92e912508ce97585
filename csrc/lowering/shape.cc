#include "lowering/shape.h"

#include <algorithm>

#include "lowering/expression.h"
#include "lowering/families.h"
#include "lowering/indexing.h"
#include "lowering/promotion.h"
#include "lowering/scan.h"

namespace torch_tpu::lowering {

namespace sh = stablehlo;

namespace {

// --- Joining ------------------------------------------------------------------------------------

// The dtype several tensors meet in. PyTorch's own answer, where it is known, also weighs numbers.
ElementType common_dtype(const Values& tensors) {
  if (tensors.empty()) throw Unsupported("expected a list of tensors");
  ElementType dtype = tensors[0].dtype();
  for (const Value v : tensors) dtype = promote_types(dtype, v.dtype());
  return dtype;
}

ElementType joined_dtype(const Call& call) {
  return call.num_outputs() > 0 ? call.output().dtype : common_dtype(call.tensors("tensors"));
}

// A 1-d tensor without elements joins anything, whatever the others' rank.
bool is_legacy_empty(Value v) { return v.rank() == 1 && v.dim(0) == 0; }

Values cat(Call& call) {
  const ElementType dtype = joined_dtype(call);
  Values parts;
  for (const Value v : call.tensors("tensors")) {
    if (!is_legacy_empty(v)) parts.push_back(sh::convert(v, dtype));
  }
  if (parts.empty()) return {sh::convert(call.tensors("tensors").front(), dtype)};
  if (parts.size() == 1) return {parts[0]};
  return {sh::concatenate(parts, wrap_dim(call.integer("dim"), parts[0].rank()))};
}

Values stack(Call& call) {
  const ElementType dtype = joined_dtype(call);
  Values parts = call.tensors("tensors");
  const int64_t dim = wrap_dim(call.integer("dim"), parts.at(0).rank() + 1);
  for (Value& v : parts) v = sh::expand_dim(sh::convert(v, dtype), dim);
  return {parts.size() == 1 ? parts[0] : sh::concatenate(parts, dim)};
}

Values block_diag(Call& call) {
  const ElementType dtype = joined_dtype(call);
  Values blocks;
  int64_t width = 0;
  for (const Value v : call.tensors("tensors")) {
    if (v.rank() > 2) throw Unsupported("block_diag: a tensor with more than two dimensions");
    const Dims dims = v.rank() == 2 ? v.dims() : Dims{1, v.numel()};
    blocks.push_back(sh::reshape(sh::convert(v, dtype), dims));
    width += dims[1];
  }
  int64_t left = 0;
  for (Value& v : blocks) {
    const int64_t right = width - left - v.dim(1);
    const Value zero = zeros(call.builder(), dtype, {});
    const int64_t next = left + v.dim(1);
    v = sh::pad(v, zero, {0, left}, {0, right});
    left = next;
  }
  return {blocks.size() == 1 ? blocks[0] : sh::concatenate(blocks, 0)};
}

// --- Reordering ---------------------------------------------------------------------------------

Value rolled(Value v, int64_t dim, int64_t shift) {
  const int64_t size = v.dim(dim);
  if (size == 0) return v;
  const int64_t by = ((shift % size) + size) % size;
  if (by == 0) return v;
  return sh::concatenate(
      {sh::slice_dim(v, dim, size - by, size), sh::slice_dim(v, dim, 0, size - by)}, dim);
}

Values roll(Call& call) {
  const Value self = call.tensor("self");
  const Dims shifts = call.ints("shifts"), dims = call.ints("dims");
  if (dims.empty()) {
    if (shifts.size() != 1) throw Unsupported("roll: several shifts without dims");
    return {sh::reshape(rolled(sh::flatten(self), 0, shifts[0]), self.dims())};
  }
  if (dims.size() != shifts.size()) throw Unsupported("roll: shifts and dims of unequal length");
  if (self.rank() == 0) return {self};
  Value v = self;
  for (size_t i = 0; i < dims.size(); ++i) v = rolled(v, wrap_dim(dims[i], v.rank()), shifts[i]);
  return {v};
}

Values flip(Call& call) {
  const Value self = call.tensor("self");
  const Dims dims = call.ints("dims");
  if (dims.empty() || self.rank() == 0) return {self};
  return {sh::reverse(self, wrap_dims(dims, self.rank()))};
}

Values rot90(Call& call) {
  const Value self = call.tensor("self");
  const Dims dims = call.ints("dims");
  if (dims.size() != 2 || self.rank() < 2) throw Unsupported("rot90: expected two dimensions");
  const int64_t a = wrap_dim(dims[0], self.rank()), b = wrap_dim(dims[1], self.rank());
  Dims swap(static_cast<size_t>(self.rank()));
  for (size_t i = 0; i < swap.size(); ++i) swap[i] = static_cast<int64_t>(i);
  std::swap(swap[static_cast<size_t>(a)], swap[static_cast<size_t>(b)]);
  switch (((call.integer("k") % 4) + 4) % 4) {
    case 1:
      return {sh::transpose(sh::reverse(self, {b}), swap)};
    case 2:
      return {sh::reverse(self, {std::min(a, b), std::max(a, b)})};
    case 3:
      return {sh::transpose(sh::reverse(self, {a}), swap)};
    default:
      return {self};
  }
}

// --- Triangles ----------------------------------------------------------------------------------

enum class Triangle { kLower, kUpper };

Values keep_triangle(Call& call, Triangle which) {
  const Value self = call.tensor("self");
  const int64_t rank = self.rank();
  if (rank < 2) throw Unsupported(call.op() + ": fewer than two dimensions");
  if (self.numel() == 0) return {self};
  const int64_t rows = self.dim(rank - 2), columns = self.dim(rank - 1);
  const int64_t diagonal = std::clamp(call.integer("diagonal"), -rows - 1, columns + 1);
  const TensorType type{ElementType::kS32, {rows, columns}};
  const Value row = sh::iota(call.builder(), type, 0) + static_cast<double>(diagonal);
  const Value column = sh::iota(call.builder(), type, 1);
  const Value kept = which == Triangle::kLower ? column <= row : column >= row;
  return {sh::select(sh::broadcast_to(kept, self.dims()), self, constant_like(self, 0))};
}

Values triangle_indices(Call& call, Triangle which) {
  Builder& b = call.builder();
  const int64_t rows = call.integer("row"), columns = call.integer("col");
  const int64_t offset = std::clamp(call.integer_or("offset", 0), -rows - 1, columns + 1);
  int64_t count = 0;
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t lower = std::clamp<int64_t>(i + offset + 1, 0, columns);
    count +=
        which == Triangle::kLower ? lower : columns - std::clamp<int64_t>(i + offset, 0, columns);
  }
  if (count == 0) return {sh::splat(b, {ElementType::kS64, {2, 0}}, 0)};

  const TensorType per_row{ElementType::kS32, {rows}};
  const auto bounded = [&](int64_t shift) {
    const Value zero = sh::scalar(b, ElementType::kS32, 0);
    const Value most = sh::scalar(b, ElementType::kS32, columns);
    return sh::clamp(zero, sh::iota(b, per_row, 0) + static_cast<double>(shift), most);
  };
  const Value first = which == Triangle::kLower ? sh::splat(b, per_row, 0) : bounded(offset);
  const Value limit =
      which == Triangle::kLower ? bounded(offset + 1) : sh::splat(b, per_row, columns);
  const Value width = limit - first;
  const Value starts = running_sum(width, 0) - width;
  const Value row = segment_of(starts, count);
  // A row's k-th element is `first` + k.
  const Value skip = take_elements(first - starts, advanced_index({rows}, {row}, Negative::kAsIs));
  const Value column = sh::iota(b, {ElementType::kS32, {count}}, 0) + skip;
  const Value both = sh::concatenate({sh::expand_dim(row, 0), sh::expand_dim(column, 0)}, 0);
  return {sh::convert(both, ElementType::kS64)};
}

// --- Growing ------------------------------------------------------------------------------------

Values repeat(Call& call) {
  const Value self = call.tensor("self");
  const Dims repeats = call.ints("repeats");
  const size_t extra = repeats.size() - static_cast<size_t>(self.rank());
  if (repeats.size() < static_cast<size_t>(self.rank())) {
    throw InvalidArgument(
        "Number of dimensions of repeat dims can not be smaller than number of dimensions of "
        "tensor");
  }
  // [2, 3] repeated (4, 5) times: [4, 2, 5, 3], with the copies side by side.
  Dims tiled, mapping, out;
  for (size_t i = 0; i < repeats.size(); ++i) {
    tiled.push_back(repeats[i]);
    out.push_back(repeats[i]);
    if (i < extra) continue;
    mapping.push_back(static_cast<int64_t>(tiled.size()));
    tiled.push_back(self.dims()[i - extra]);
    out.back() *= self.dims()[i - extra];
  }
  return {sh::reshape(sh::broadcast_in_dim(self, tiled, mapping), out)};
}

}  // namespace

Value permuted(Value value, const Dims& permutation) {
  return std::is_sorted(permutation.begin(), permutation.end()) ? value
                                                                : sh::transpose(value, permutation);
}

Value move_dim(Value value, int64_t from, int64_t to) {
  Dims order;
  for (int64_t d = 0; d < value.rank(); ++d) {
    if (d != from) order.push_back(d);
  }
  order.insert(order.begin() + to, from);
  return permuted(value, order);
}

void register_shape(Registry& r) {
  r.add("aten::cat", cat);
  r.add("aten::stack", stack);
  r.add("aten::block_diag", block_diag);
  r.add("aten::roll", roll);
  r.add("aten::flip", flip);
  r.add("aten::rot90", rot90);
  r.add("aten::tril", [](Call& call) { return keep_triangle(call, Triangle::kLower); });
  r.add("aten::triu", [](Call& call) { return keep_triangle(call, Triangle::kUpper); });
  r.add("aten::tril_indices", [](Call& call) { return triangle_indices(call, Triangle::kLower); });
  r.add("aten::triu_indices", [](Call& call) { return triangle_indices(call, Triangle::kUpper); });
  r.add("aten::repeat", repeat);
  register_view_copies(r);
  register_view_updates(r);
}

}  // namespace torch_tpu::lowering
