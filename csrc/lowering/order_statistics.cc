// median, kthvalue and mode: picked from sorted values.
#include "lowering/expression.h"
#include "lowering/indexing.h"
#include "lowering/reduction.h"
#include "lowering/scan.h"
#include "lowering/sorting.h"

namespace torch_tpu::lowering {

namespace sh = stablehlo;

namespace {

struct Picked {
  Value value, index;
};

// The element at `position` (one per row) along `dim`.
Value at_position(Value x, Value position, int64_t dim) {
  const TensorType type{position.dtype(), x.dims()};
  const Value here = sh::eq(sh::iota(x.builder(), type, dim), spread(position, x.dims(), {dim}));
  const Value masked = sh::select(here, x, constant_like(x, 0));
  return sh::is_bool(x.dtype()) ? any_over(masked, {dim}) : sum_over(masked, {dim});
}

Picked median_along(Value x, int64_t dim, bool ignore_nan) {
  const Sorted sorted = sorted_along(x, dim, false);
  const int64_t n = x.dim(dim);
  // NaNs are at the end, and their first one is the result if they are not ignored.
  const Value numbers = sum_over(sh::convert(sh::not_(is_nan(x)), ElementType::kS32), {dim});
  const Value zero = constant_like(numbers, 0), one = constant_like(numbers, 1);
  Value position;
  if (ignore_nan) {
    position = sh::divide(sh::maximum(sh::subtract(numbers, one), zero), constant_like(numbers, 2));
  } else {
    const Value all = constant_like(numbers, static_cast<double>(n));
    const Value middle = constant_like(numbers, static_cast<double>((n - 1) / 2));
    position = sh::select(sh::eq(numbers, all), middle, numbers);
  }
  return {at_position(sorted.values, position, dim), at_position(sorted.indices, position, dim)};
}

Value ordered_self(const Call& call) {
  const Value self = call.tensor("self");
  if (sh::is_complex(self.dtype())) throw Unsupported(call.op() + ": complex numbers");
  if (self.numel() == 0) throw Unsupported(call.op() + ": an empty tensor");
  return self;
}

Values finish(const Call& call, Value self, const Picked& picked, int64_t dim) {
  const Value index = sh::convert(picked.index, ElementType::kS64);
  if (self.rank() == 0 || !call.boolean("keepdim")) return {picked.value, index};
  return {keep_dims(picked.value, self.dims(), {dim}), keep_dims(index, self.dims(), {dim})};
}

template <bool ignore_nan>
Values median_rule(Call& call) {
  const Value self = ordered_self(call);
  if (!call.has("dim")) return {median_along(sh::flatten(self), 0, ignore_nan).value};
  const Value x = at_least_1d(self);
  const int64_t dim = wrap_dim(call.integer("dim"), x.rank());
  return finish(call, self, median_along(x, dim, ignore_nan), dim);
}

Values kthvalue(Call& call) {
  const Value self = ordered_self(call);
  const Value x = at_least_1d(self);
  const int64_t dim = wrap_dim(call.integer_or("dim", -1), x.rank());
  const int64_t k = call.integer("k");
  if (k < 1 || k > x.dim(dim)) throw Unsupported("kthvalue: k is out of range");
  const Sorted sorted = sorted_along(x, dim, false);
  const auto kth = [&](Value v) { return sh::squeeze_dim(sh::slice_dim(v, dim, k - 1, k), dim); };
  return finish(call, self, {kth(sorted.values), kth(sorted.indices)}, dim);
}

// The most frequent value (the smallest of them), and the last of its positions.
Values mode(Call& call) {
  const Value self = ordered_self(call);
  const Value x = at_least_1d(self);
  const int64_t dim = wrap_dim(call.integer_or("dim", -1), x.rank());
  const int64_t n = x.dim(dim);
  const Sorted sorted = sorted_along(x, dim, false);
  const TensorType type{ElementType::kS32, x.dims()};
  Builder& b = call.builder();
  const Value position = sh::iota(b, type, dim);
  // Where each run of equal values starts; its length so far is the distance to there.
  Value start = sh::splat(b, type, int64_t{0});
  if (n > 1) {
    const Value later = sh::slice_dim(sorted.values, dim, 1, n);
    const Value earlier = sh::slice_dim(sorted.values, dim, 0, n - 1);
    Dims low(x.dims().size(), 0);
    low[static_cast<size_t>(dim)] = 1;
    const Value differs = sh::pad(sh::ne(later, earlier), sh::scalar(b, ElementType::kPred, true),
                                  low, Dims(x.dims().size(), 0));
    start = running_max(sh::select(differs, position, start), dim);
  }
  const Value length = sh::subtract(position, start);
  const Value best =
      sh::convert(first_index_of(length, max_over(length, {dim}), dim), ElementType::kS32);
  return finish(call, self,
                {at_position(sorted.values, best, dim), at_position(sorted.indices, best, dim)},
                dim);
}

}  // namespace

void register_order_statistics(Registry& r) {
  r.add("aten::median", median_rule<false>);
  r.add("aten::nanmedian", median_rule<true>);
  r.add("aten::kthvalue", kthvalue);
  r.add("aten::mode", mode);
}

}  // namespace torch_tpu::lowering
