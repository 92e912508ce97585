// Histograms in one or more dimensions.
#include <limits>

#include "lowering/expression.h"
#include "lowering/reduction.h"
#include "lowering/sorting.h"

namespace torch_tpu::lowering {

namespace sh = stablehlo;

namespace {

// The points, [n, dimensions]; `torch.histogram` has one dimension.
Value points(const Call& call, bool one_dimension) {
  const Value self = call.tensor("self");
  if (self.dtype() != ElementType::kF32 && self.dtype() != ElementType::kF64) {
    throw Unsupported(call.op() + ": not float32 or float64");
  }
  if (one_dimension) return sh::reshape(self, {self.numel(), 1});
  if (self.rank() < 2) throw Unsupported(call.op() + ": no dimension of coordinates");
  const int64_t d = self.dim(self.rank() - 1);
  return sh::reshape(self, {d == 0 ? 0 : self.numel() / d, d});
}

Value coordinate(Value x, int64_t d) { return sh::squeeze_dim(sh::slice_dim(x, 1, d, d + 1), 1); }

struct Limits {
  Value low, high;  // 0-d
};

// What was asked for, or the data's own extremes; never an empty interval.
Limits limits(const Call& call, Value x, int64_t d) {
  Builder& b = call.builder();
  const TensorType number{x.dtype(), {}};
  Value low, high;
  if (call.has("range")) {
    const Values range = call.numbers("range", x.dtype());
    low = range.at(static_cast<size_t>(2 * d));
    high = range.at(static_cast<size_t>(2 * d + 1));
  } else if (x.numel() == 0) {
    low = number_of(b, number, 0);
    high = number_of(b, number, 1);
  } else {
    low = min_over(coordinate(x, d), {0});
    high = max_over(coordinate(x, d), {0});
  }
  const Value flat = equals(low, high);
  return {choose(flat, low - 0.5, low), choose(flat, high + 0.5, high)};
}

// From both ends, so that both are met exactly.
Value even_edges(const Limits& l, int64_t bins) {
  const TensorType type{l.low.dtype(), {bins + 1}};
  const auto all = [&](Value v) { return sh::broadcast_to(v, type.dims); };
  const Value step = all((l.high - l.low) / static_cast<double>(bins));
  const Value position = sh::iota(l.low.builder(), type, 0);
  const Value from_low = all(l.low) + step * position;
  const Value from_high = all(l.high) - step * (static_cast<double>(bins) - position);
  return choose(position < static_cast<double>((bins + 1) / 2), from_low, from_high);
}

Values even_edges(const Call& call, Value x, const Dims& bins) {
  Values edges;
  for (size_t d = 0; d < bins.size(); ++d) {
    if (bins[d] <= 0) throw Unsupported(call.op() + ": no bins");
    edges.push_back(even_edges(limits(call, x, static_cast<int64_t>(d)), bins[d]));
  }
  return edges;
}

Value histogram(const Call& call, Value x, const Values& edges) {
  Builder& b = call.builder();
  Dims shape;
  for (const Value e : edges) shape.push_back(e.dim(0) - 1);
  const int64_t total = sh::product(shape), n = x.dim(0);
  if (static_cast<int64_t>(shape.size()) != x.dim(1)) throw Unsupported(call.op() + ": bins");
  Value counts = sh::splat(b, TensorType{x.dtype(), {total}}, 0.0);
  if (n > 0 && total > 0) {
    Value place, inside;
    for (size_t d = 0; d < edges.size(); ++d) {
      const Value v = coordinate(x, static_cast<int64_t>(d)), e = edges[d];
      const auto edge = [&](int64_t i) {
        return sh::broadcast_to(sh::slice_dim(e, 0, i, i + 1), v.dims());
      };
      const Value here = (v >= edge(0)) & (v <= edge(shape[d]));
      // The last bin has both of its edges.
      const Value bin = sh::minimum(count_before(e, v, /*right=*/true) - 1.0,
                                    sh::splat(b, TensorType{ElementType::kS32, {n}}, shape[d] - 1));
      place = place ? place * static_cast<double>(shape[d]) + bin : bin;
      inside = inside ? inside & here : here;
    }
    // Points outside go past the end, where a scatter drops them.
    const Value target = choose(inside, place, static_cast<double>(total));
    const Value weight = call.has("weight")
                             ? sh::convert(sh::flatten(call.tensor("weight")), x.dtype())
                             : sh::splat(b, TensorType{x.dtype(), {n}}, 1.0);
    const sh::ScatterDims dims{.update_window_dims = {},
                               .inserted_window_dims = {0},
                               .scatter_dims_to_operand_dims = {0},
                               .index_vector_dim = 1};
    counts = sh::scatter(counts, sh::expand_dim(target, 1), weight, dims,
                         [](const Values& v) { return Values{sh::add(v[0], v[1])}; });
  }
  if (call.boolean("density")) {
    counts = counts / sh::broadcast_to(sum_over(counts, {0}), counts.dims());
  }
  counts = sh::reshape(counts, shape);
  if (call.boolean("density")) {
    for (size_t d = 0; d < edges.size(); ++d) {
      const int64_t bins = shape[d];
      const Value width =
          sh::slice_dim(edges[d], 0, 1, bins + 1) - sh::slice_dim(edges[d], 0, 0, bins);
      counts = counts / sh::broadcast_in_dim(width, shape, {static_cast<int64_t>(d)});
    }
  }
  return counts;
}

Values histogram_of_count(Call& call) {
  const Value x = points(call, true);
  const Values edges = even_edges(call, x, {call.integer("bins")});
  return {histogram(call, x, edges), edges[0]};
}

Values histogram_of_edges(Call& call) {
  const Value x = points(call, true), edges = call.tensor("bins");
  if (edges.rank() != 1 || edges.dtype() != x.dtype() || edges.dim(0) < 2) {
    throw Unsupported("histogram: edges of another dtype, or no bins");
  }
  return {histogram(call, x, {edges}), edges};
}

Values edges_of_counts(Call& call) {
  return even_edges(call, points(call, false), call.ints("bins"));
}

Values dimensions_of_counts(Call& call) {
  const Value x = points(call, false);
  return {histogram(call, x, even_edges(call, x, call.ints("bins")))};
}

Values dimensions_of_edges(Call& call) {
  const Value x = points(call, false);
  const Values edges = call.tensors("bins");
  for (const Value e : edges) {
    if (e.rank() != 1 || e.dtype() != x.dtype() || e.dim(0) < 2) {
      throw Unsupported("_histogramdd_from_bin_tensors: edges of another dtype, or no bins");
    }
  }
  return {histogram(call, x, edges)};
}

}  // namespace

void register_histogram(Registry& r) {
  r.add("aten::histogram.bin_ct", histogram_of_count);
  r.add("aten::histogram.bin_ct_out", histogram_of_count);
  r.add("aten::histogram.bins_tensor", histogram_of_edges);
  r.add("aten::histogram.bins_tensor_out", histogram_of_edges);
  r.add("aten::_histogramdd_bin_edges", edges_of_counts);
  r.add("aten::_histogramdd_from_bin_cts", dimensions_of_counts);
  r.add("aten::_histogramdd_from_bin_tensors", dimensions_of_edges);
}

}  // namespace torch_tpu::lowering
