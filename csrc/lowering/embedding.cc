// Lookup tables: embedding, embedding_bag and their gradients.
#include <limits>

#include "lowering/indexing.h"
#include "lowering/promotion.h"
#include "lowering/typed_rule.h"

namespace torch_tpu::lowering {

namespace sh = stablehlo;

namespace {

enum class Mode : int64_t { kSum = 0, kMean = 1, kMax = 2 };

Value full(Value like, int64_t value) { return sh::full_like(like, value); }

Value rows_of(Value table, Value index) {
  return take_elements(table, dimension_index(table.dims(), 0, index, Negative::kAsIs));
}

Value put_rows(Value table, Value index, Value rows, Merge merge) {
  return put_elements(table, dimension_index(table.dims(), 0, index, Negative::kAsIs), rows, merge);
}

// One number per row, for all of a row's columns.
Value across(Value column, Value rows) {
  return sh::broadcast_in_dim(sh::convert(column, rows.dtype()), rows.dims(), {0});
}

// The index, or one beyond the table (which scatter passes over) where it is the padding.
Value without(Value index, int64_t padding, int64_t rows) {
  if (padding < 0) return index;
  return sh::select(sh::eq(index, full(index, padding)), full(index, rows), index);
}

// How often each index occurs, for each of its occurrences; padding counts as once.
Value frequency(Value index, int64_t rows) {
  Builder& b = index.builder();
  const Value ones = sh::splat(b, {ElementType::kF32, index.dims()}, 1);
  const Value counts = put_rows(zeros(b, ElementType::kF32, {rows}), index, ones, Merge::kAdd);
  return sh::maximum(rows_of(counts, index), ones);
}

Values embedding(Call& call) { return {rows_of(call.tensor("weight"), call.tensor("indices"))}; }

Values embedding_dense_backward(Call& call) {
  const Value grad = call.tensor("grad_output");
  const int64_t rows = call.integer("num_weights");
  const int64_t width = grad.dims().back();
  const Value all = sh::flatten(call.tensor("indices"));
  const ElementType type = compute_type(grad.dtype());
  const Value table = zeros(call.builder(), type, {rows, width});
  if (all.numel() == 0 || rows == 0) return {table};
  const Value index = without(all, call.integer("padding_idx"), rows);
  Value updates = sh::convert(sh::reshape(grad, {all.numel(), width}), type);
  if (call.boolean("scale_grad_by_freq")) {
    updates = sh::divide(updates, across(frequency(index, rows), updates));
  }
  return {put_rows(table, index, updates, Merge::kAdd)};
}

// The p-norm of each row.
Value row_norms(Value rows, double p) {
  const Value magnitude = sh::abs(rows);
  const auto constant = [&](double value, Value like) { return sh::full_like(like, value); };
  if (p == std::numeric_limits<double>::infinity()) return sh::reduce_max(magnitude, {1});
  if (p == 1) return sh::reduce_sum(magnitude, {1});
  if (p == 2) return sh::sqrt(sh::reduce_sum(sh::multiply(rows, rows), {1}));
  const Value sum = sh::reduce_sum(sh::power(magnitude, constant(p, magnitude)), {1});
  return sh::power(sum, constant(1 / p, sum));
}

Values embedding_renorm(Call& call) {
  const Value self = call.tensor("self");
  const Value index = sh::flatten(call.tensor("indices"));
  if (index.numel() == 0 || self.numel() == 0) return {self};
  const ElementType type = compute_type(self.dtype());
  const Value rows = sh::convert(rows_of(self, index), type);
  const Value norms = row_norms(rows, *call.known_number("norm_type"));
  const Value limit = sh::broadcast_to(call.number("max_norm", type), norms.dims());
  const Value scale = sh::divide(limit, sh::add(norms, sh::full_like(norms, 1e-7)));
  const Value factor = sh::select(sh::gt(norms, limit), scale, sh::full_like(norms, 1.0));
  const Value scaled = sh::multiply(rows, across(factor, rows));
  return {put_rows(self, index, sh::convert(scaled, self.dtype()), Merge::kAssign)};
}

// --- Bags ---------------------------------------------------------------------------------------

// `value`, with zeros up to `dims`.
Value padded(Value value, const Dims& dims) {
  Dims high(dims.size());
  for (size_t d = 0; d < dims.size(); ++d) high[d] = dims[d] - value.dims()[d];
  return sh::pad(value, sh::scalar(value.builder(), value.dtype(), 0), Dims(dims.size(), 0), high);
}

// For each bag and column, the index whose row holds the maximum (the first such one).
Value indices_of_maxima(Value rows, Value maxima, Value bags, Value index) {
  const int64_t count = rows.dim(0);
  const Value at = sh::iota(rows.builder(), {ElementType::kS32, rows.dims()}, 0);
  const Value is_maximum = sh::eq(rows, rows_of(maxima, bags));
  const Value none = full(at, count);
  const Value first = put_rows(sh::splat(rows.builder(), {ElementType::kS32, maxima.dims()}, count),
                               bags, sh::select(is_maximum, at, none), Merge::kMin);
  const Value found = sh::lt(first, full(first, count));
  const Value taken = rows_of(index, first);
  return sh::select(found, taken, full(taken, 0));
}

Values embedding_bag(Call& call) {
  Builder& b = call.builder();
  const Value weight = call.tensor("weight");
  const Value index = call.tensor("indices");
  const Value offsets = call.tensor("offsets");
  const Mode mode{call.integer("mode")};
  const int64_t count = index.numel();
  const int64_t bags = offsets.numel() - (call.boolean("include_last_offset") ? 1 : 0);
  const ElementType type = compute_type(weight.dtype());
  const Dims shape{bags, weight.dim(1)};

  const TensorType bag_size_type =
      call.num_outputs() > 2 ? call.output(2) : TensorType{index.dtype(), {bags}};
  const TensorType maxima_type =
      call.num_outputs() > 3 ? call.output(3)
                             : TensorType{index.dtype(), mode == Mode::kMax ? shape : Dims{bags}};
  if (count == 0 || bags == 0) {
    return {zeros(b, weight.dtype(), shape), zeros(b, index.dtype(), {count}),
            zeros(b, bag_size_type.dtype, bag_size_type.dims),
            zeros(b, maxima_type.dtype, maxima_type.dims)};
  }

  const Value bag = segment_of(offsets, count);
  // Padding belongs to no bag.
  const int64_t padding = call.integer_or("padding_idx", -1);
  const Value target =
      padding < 0 ? bag : sh::select(sh::eq(index, full(index, padding)), full(bag, bags), bag);
  const Value ones = full(bag, 1);
  const Value sizes = put_rows(zeros(b, ElementType::kS32, {bags}), target, ones, Merge::kAdd);

  Value rows = sh::convert(rows_of(weight, index), type);
  if (call.has("per_sample_weights")) {
    rows = sh::multiply(rows, across(call.tensor("per_sample_weights"), rows));
  }
  Value out, maxima = zeros(b, maxima_type.dtype, maxima_type.dims);
  if (mode == Mode::kMax) {
    const Value lowest = sh::lowest(b, {type, shape});
    const Value highest = put_rows(lowest, target, rows, Merge::kMax);
    const Value filled = sh::broadcast_in_dim(sh::gt(sizes, full(sizes, 0)), shape, {0});
    out = sh::select(filled, highest, full(highest, 0));
    maxima = indices_of_maxima(rows, highest, target, index);
  } else {
    out = put_rows(zeros(b, type, shape), target, rows, Merge::kAdd);
    if (mode == Mode::kMean) {
      out = sh::divide(out, across(sh::maximum(sizes, full(sizes, 1)), out));
    }
  }
  // PyTorch's CPU kernel leaves this one out where it does not need it.
  const bool wanted = call.num_outputs() < 2 || call.output(1).numel() == count;
  return {out, wanted ? sh::convert(bag, index.dtype()) : zeros(b, index.dtype(), {0}),
          padded(sh::convert(sizes, bag_size_type.dtype), bag_size_type.dims), maxima};
}

Value bag_maximum_backward(Value table, Value grad, Value maxima, Value sizes) {
  // The gradient of a bag goes, column by column, to the row that held the maximum.
  const Value empty = sh::eq(sizes, full(sizes, 0));
  const Value bags = sh::slice_dim(empty, 0, 0, grad.dim(0));
  const Value none = sh::broadcast_in_dim(bags, grad.dims(), {0});
  const Value place = sh::select(none, full(maxima, table.dim(0)), maxima);
  return put_along(table, 0, place, grad, Merge::kAdd);
}

Values embedding_bag_backward(Call& call) {
  if (call.boolean("sparse")) throw Unsupported(call.op() + ": sparse gradients");
  const Mode mode{call.integer("mode")};
  const Value index = call.tensor("indices");
  const Value given = call.tensor("grad");
  const ElementType type = compute_type(given.dtype());
  const Value grad = sh::convert(given, type);
  const int64_t rows = call.integer("num_weights");
  const Value table = zeros(call.builder(), type, {rows, grad.dim(1)});
  if (index.numel() == 0 || grad.numel() == 0) return {table};
  if (mode == Mode::kMax) {
    return {
        bag_maximum_backward(table, grad, call.tensor("maximum_indices"), call.tensor("bag_size"))};
  }
  const Value bag = call.tensor("offset2bag").numel() == index.numel()
                        ? call.tensor("offset2bag")
                        : segment_of(call.tensor("offsets"), index.numel());
  const Value target = without(index, call.integer_or("padding_idx", -1), rows);
  Value updates = rows_of(grad, bag);
  if (call.has("per_sample_weights")) {
    updates = sh::multiply(updates, across(call.tensor("per_sample_weights"), updates));
  }
  if (mode == Mode::kMean) {
    const Value sizes = rows_of(call.tensor("bag_size"), bag);
    updates = sh::divide(updates, across(sh::maximum(sizes, full(sizes, 1)), updates));
  }
  if (call.boolean("scale_grad_by_freq")) {
    updates = sh::divide(updates, across(frequency(target, rows), updates));
  }
  return {put_rows(table, target, updates, Merge::kAdd)};
}

Values per_sample_weights_backward(Call& call) {
  const Value weight = call.tensor("weight");
  const Value index = call.tensor("indices");
  const ElementType type = compute_type(weight.dtype());
  const Value grad = sh::convert(call.tensor("grad"), type);
  if (index.numel() == 0 || grad.numel() == 0) {
    return {zeros(call.builder(), type, {index.numel()})};
  }
  const Value bag = call.tensor("offset2bag").numel() == index.numel()
                        ? call.tensor("offset2bag")
                        : segment_of(call.tensor("offsets"), index.numel());
  const Value products =
      sh::multiply(rows_of(grad, bag), sh::convert(rows_of(weight, index), type));
  const Value sums = sh::reduce_sum(products, {1});
  const int64_t padding = call.integer_or("padding_idx", -1);
  if (padding < 0) return {sums};
  return {sh::select(sh::eq(index, full(index, padding)), full(sums, 0), sums)};
}

}  // namespace

void register_embedding(Registry& r) {
  r.add("aten::embedding", embedding);
  r.add("aten::embedding_dense_backward", with_dtype_of("grad_output", embedding_dense_backward));
  r.add("aten::embedding_renorm", embedding_renorm, {.known_numbers = {"norm_type"}});
  r.add("aten::_embedding_bag", with_dtype_of("weight", embedding_bag));
  r.add("aten::_embedding_bag_forward_only", with_dtype_of("weight", embedding_bag));
  r.add("aten::_embedding_bag_backward", with_dtype_of("grad", embedding_bag_backward));
  r.add("aten::_embedding_bag_dense_backward", with_dtype_of("grad", embedding_bag_backward));
  r.add("aten::_embedding_bag_per_sample_weights_backward",
        with_dtype_of("grad", per_sample_weights_backward));
}

}  // namespace torch_tpu::lowering
