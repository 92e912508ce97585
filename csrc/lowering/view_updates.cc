// A tensor with a part replaced: *_scatter, the gradients of slicing, and diagonals.
#include <algorithm>
#include <limits>

#include "lowering/expression.h"
#include "lowering/indexing.h"
#include "lowering/shape.h"

namespace torch_tpu::lowering {

namespace sh = stablehlo;

namespace {

// --- Slices -------------------------------------------------------------------------------------

// Elements start, start + step, ... of one dimension, `count` of them.
struct Slice {
  int64_t dim, start, step, count;
};

Slice slice_of(const Call& call, const Dims& dims) {
  const auto rank = static_cast<int64_t>(dims.size());
  const int64_t dim = wrap_dim(call.integer("dim"), rank);
  const int64_t size = dims.at(static_cast<size_t>(dim));
  const auto place = [&](std::string_view name, int64_t otherwise) {
    const int64_t at = call.integer_or(name, otherwise);
    return std::clamp<int64_t>(at < 0 ? at + size : at, 0, size);
  };
  const int64_t start = place("start", 0);
  const int64_t end = std::max(start, place("end", std::numeric_limits<int64_t>::max()));
  const int64_t step = call.integer("step");
  return {dim, start, step, (end - start + step - 1) / step};
}

// The one element that select() would show.
Slice selected(const Call& call, const Dims& dims) {
  const auto rank = static_cast<int64_t>(dims.size());
  const int64_t dim = wrap_dim(call.integer("dim"), rank);
  const int64_t size = dims.at(static_cast<size_t>(dim));
  const int64_t index = call.integer("index");
  return {dim, index < 0 ? index + size : index, 1, 1};
}

// `part` at its place in a tensor like `dims`, `around` elsewhere.
Value placed(Value part, const Slice& slice, const Dims& dims, Value around) {
  const auto d = static_cast<size_t>(slice.dim);
  Dims low(dims.size(), 0), high(dims.size(), 0), interior(dims.size(), 0);
  const int64_t span = slice.count == 0 ? 0 : (slice.count - 1) * slice.step + 1;
  low[d] = slice.start;
  high[d] = dims[d] - slice.start - span;
  interior[d] = slice.step - 1;
  return sh::pad(part, around, low, high, interior);
}

Value replaced(Value self, Value part, const Slice& slice) {
  Builder& b = self.builder();
  if (part.numel() == 0) return self;
  const Value update = sh::convert(part, self.dtype());
  if (slice.step == 1) {
    Values start(self.dims().size(), sh::scalar(b, ElementType::kS32, 0));
    start[static_cast<size_t>(slice.dim)] = sh::scalar(
        b,
        slice.start <= std::numeric_limits<int32_t>::max() ? ElementType::kS32 : ElementType::kS64,
        slice.start);
    for (Value& v : start) v = sh::convert(v, start[static_cast<size_t>(slice.dim)].dtype());
    return sh::dynamic_update_slice(self, update, start);
  }
  const Value wide = placed(update, slice, self.dims(), zeros(b, self.dtype(), {}));
  const Value here = placed(sh::splat(b, {ElementType::kPred, part.dims()}, true), slice,
                            self.dims(), sh::scalar(b, ElementType::kPred, false));
  return sh::select(here, wide, self);
}

Dims with_size(Dims dims, const Slice& slice) {
  dims[static_cast<size_t>(slice.dim)] = slice.count;
  return dims;
}

Values slice_scatter(Call& call) {
  const Value self = call.tensor("self");
  const Slice slice = slice_of(call, self.dims());
  const Value src = call.tensor("src");
  return {replaced(self, sh::broadcast_to(src, with_size(self.dims(), slice)), slice)};
}

Values select_scatter(Call& call) {
  const Value self = call.tensor("self");
  const Slice slice = selected(call, self.dims());
  return {replaced(self, sh::expand_dim(call.tensor("src"), slice.dim), slice)};
}

Values slice_backward(Call& call) {
  const Value grad = call.tensor("grad_output");
  const Dims dims = call.ints("input_sizes");
  return {placed(grad, slice_of(call, dims), dims, zeros(call.builder(), grad.dtype(), {}))};
}

Values select_backward(Call& call) {
  const Value grad = call.tensor("grad_output");
  const Dims dims = call.ints("input_sizes");
  const Slice slice = selected(call, dims);
  return {placed(sh::expand_dim(grad, slice.dim), slice, dims,
                 zeros(call.builder(), grad.dtype(), {}))};
}

// --- Diagonals ----------------------------------------------------------------------------------

struct Diagonal {
  int64_t offset, rows, columns;  // the dimensions rows and columns run along
};

Diagonal diagonal_of(const Call& call, int64_t rank) {
  return {call.integer_or("offset", 0), wrap_dim(call.integer("dim1"), rank),
          wrap_dim(call.integer("dim2"), rank)};
}

// `base` with `values` (the diagonal last) along its diagonal.
Value with_diagonal(Value base, Value values, const Diagonal& diagonal) {
  if (values.numel() == 0) return base;
  Builder& b = base.builder();
  // Give every row of the matrix its element, then pick the one column it belongs to.
  const int64_t last = values.rank() - 1;
  const int64_t first = std::max<int64_t>(0, -diagonal.offset);
  Dims low(values.dims().size(), 0), high = low;
  low.back() = first;
  high.back() = base.dim(diagonal.rows) - first - values.dim(last);
  const Value by_row =
      sh::pad(sh::convert(values, base.dtype()), zeros(b, base.dtype(), {}), low, high);
  int64_t place = 0;  // of the rows among the dimensions of `by_row`
  Dims mapping;
  for (int64_t d = 0; d < base.rank(); ++d) {
    if (d == diagonal.columns) continue;
    if (d == diagonal.rows) place = static_cast<int64_t>(mapping.size());
    mapping.push_back(d);
  }
  const Value wide = sh::broadcast_in_dim(move_dim(by_row, last, place), base.dims(), mapping);
  const TensorType positions{ElementType::kS32, base.dims()};
  const Value row = sh::iota(b, positions, diagonal.rows);
  const Value column = sh::iota(b, positions, diagonal.columns);
  return sh::select(equals(column - row, static_cast<double>(diagonal.offset)), wide, base);
}

// The diagonal, as the last dimension.
Value diagonal_elements(Value self, const Diagonal& diagonal) {
  Dims order;
  for (int64_t d = 0; d < self.rank(); ++d) {
    if (d != diagonal.rows && d != diagonal.columns) order.push_back(d);
  }
  order.insert(order.end(), {diagonal.rows, diagonal.columns});
  const Value matrix = permuted(self, order);
  const int64_t last = matrix.rank() - 1;
  const int64_t top = std::max<int64_t>(0, -diagonal.offset);
  const int64_t left = std::max<int64_t>(0, diagonal.offset);
  const int64_t n =
      std::max<int64_t>(0, std::min(matrix.dim(last - 1) - top, matrix.dim(last) - left));
  Dims out = matrix.dims();
  out.pop_back();
  out.back() = n;
  if (sh::product(out) == 0) return zeros(self.builder(), self.dtype(), out);
  // In a flattened n x n matrix the diagonal is every (n + 1)-th element.
  const Value square =
      sh::slice_dim(sh::slice_dim(matrix, last - 1, top, top + n), last, left, left + n);
  Dims flat = out;
  flat.back() = n * n;
  return sh::slice_dim(sh::reshape(square, flat), last - 1, 0, n * n, n + 1);
}

Values diagonal_copy(Call& call) {
  const Value self = call.tensor("self");
  return {diagonal_elements(self, diagonal_of(call, self.rank()))};
}

Values diagonal_scatter(Call& call) {
  const Value self = call.tensor("self");
  return {with_diagonal(self, call.tensor("src"), diagonal_of(call, self.rank()))};
}

Values diagonal_backward(Call& call) {
  const Value grad = call.tensor("grad_output");
  const Dims dims = call.ints("input_sizes");
  return {with_diagonal(zeros(call.builder(), grad.dtype(), dims), grad,
                        diagonal_of(call, static_cast<int64_t>(dims.size())))};
}

Values diag_embed(Call& call) {
  const Value self = call.tensor("self");
  const Diagonal diagonal = diagonal_of(call, self.rank() + 1);
  Dims dims(self.dims().begin(), self.dims().end() - 1);
  const int64_t size = self.dims().back() + std::abs(diagonal.offset);
  dims.insert(dims.begin() + std::min(diagonal.rows, diagonal.columns), size);
  dims.insert(dims.begin() + std::max(diagonal.rows, diagonal.columns), size);
  return {with_diagonal(zeros(call.builder(), self.dtype(), dims), self, diagonal)};
}

}  // namespace

void register_view_updates(Registry& r) {
  r.add("aten::slice_scatter", slice_scatter);
  r.add("aten::select_scatter", select_scatter);
  r.add("aten::slice_backward", slice_backward);
  r.add("aten::select_backward", select_backward);
  r.add("aten::diagonal_copy", diagonal_copy);
  r.add("aten::diagonal_scatter", diagonal_scatter);
  r.add("aten::diagonal_backward", diagonal_backward);
  r.add("aten::diag_embed", diag_embed);
}

}  // namespace torch_tpu::lowering
