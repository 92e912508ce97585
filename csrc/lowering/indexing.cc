#include "lowering/indexing.h"

#include <algorithm>

#include "lowering/families.h"
#include "lowering/promotion.h"
#include "lowering/scan.h"

namespace torch_tpu::lowering {

namespace sh = stablehlo;

namespace {

// Sums of narrow floats are formed in float32.
Value put_computed(Value self, const AdvancedIndex& index, Value updates, Merge merge) {
  const ElementType type =
      merge == Merge::kAdd || merge == Merge::kMultiply ? compute_type(self.dtype()) : self.dtype();
  const Value out = put_elements(sh::convert(self, type), index, sh::convert(updates, type), merge);
  return sh::convert(out, self.dtype());
}

// What a program could not find out, or would pass over.
void check_put(const AdvancedIndex& where, const Dims& values) {
  for (const int64_t d : where.dims) {
    if (where.operand[static_cast<size_t>(d)] == 0 && where.starts.numel() > 0) {
      throw InvalidArgument("index is out of bounds for dimension with size 0",
                            InvalidArgument::Kind::kIndex);
    }
  }
  const size_t spare = values.size() - std::min(values.size(), where.result.size());
  bool fits = std::all_of(values.begin(), values.begin() + static_cast<ptrdiff_t>(spare),
                          [](int64_t size) { return size == 1; });
  for (size_t i = spare; i < values.size(); ++i) {
    const int64_t room = where.result[where.result.size() - values.size() + i];
    fits &= values[i] == 1 || values[i] == room;
  }
  if (!fits) {
    throw InvalidArgument("shape mismatch: value tensor of shape " + sh::to_string(values) +
                          " cannot be broadcast to indexing result of shape " +
                          sh::to_string(where.result));
  }
}

AdvancedIndex along(const Call& call, Value self, Negative negative = Negative::kAsIs) {
  const int64_t dim = wrap_dim(call.integer("dim"), self.rank());
  return dimension_index(at_least_1d(self).dims(), dim, at_least_1d(call.tensor("index")),
                         negative);
}

// --- self[indices] ------------------------------------------------------------------------------

Values index(Call& call) {
  const Value self = call.tensor("self");
  return {
      take_elements(self, advanced_index(self.dims(), call.tensors("indices"), Negative::kWrap))};
}

Values index_put(Call& call) {
  const Value self = call.tensor("self");
  const AdvancedIndex where = advanced_index(self.dims(), call.tensors("indices"), Negative::kWrap);
  const Merge merge = call.boolean("accumulate") ? Merge::kAdd : Merge::kAssign;
  const Value values = call.tensor("values");
  check_put(where, values.dims());
  return {put_computed(self, where, values, merge)};
}

Values unsafe_masked_index(Call& call) {
  const Value self = call.tensor("self");
  const Value fill = call.number("fill", self.dtype());
  const Value mask = call.tensor("mask");
  const AdvancedIndex where = advanced_index(self.dims(), call.tensors("indices"), Negative::kAsIs);
  if (self.numel() == 0) return {sh::broadcast_to(fill, where.result)};
  const Value taken = take_elements(self, where);
  return {sh::select(sh::broadcast_to(mask, taken.dims()), taken,
                     sh::broadcast_to(fill, taken.dims()))};
}

// --- One dimension ------------------------------------------------------------------------------

Values index_select(Call& call) {
  const Value self = call.tensor("self");
  const Value taken = take_elements(at_least_1d(self), along(call, self));
  return {self.rank() == 0 ? sh::reshape(taken, {}) : taken};
}

Value put_rows(Call& call, Value source, Merge merge) {
  const Value self = call.tensor("self");
  const AdvancedIndex where = along(call, self);
  // A source of one element may come without its dimension.
  const bool alone = source.numel() == 1 && source.rank() < self.rank();
  const Value rows = self.rank() == 0 || alone ? sh::reshape(source, where.result) : source;
  return sh::reshape(put_computed(at_least_1d(self), where, rows, merge), self.dims());
}

Values index_add(Call& call) {
  Value source = call.tensor("source");
  // A source of one element may come with other dimensions.
  if (source.rank() != call.tensor("self").rank() && source.numel() != 1) {
    throw InvalidArgument("index_add_(): self and source must have as many dimensions");
  }
  if (!call.is_known("alpha", 1)) {
    const ElementType type = compute_type(source.dtype());
    source = sh::convert(source, type);
    const Value alpha = as(call.number("alpha", type), type, source.dims());
    source = sh::is_bool(type) ? sh::and_(source, alpha) : sh::multiply(source, alpha);
  }
  return {put_rows(call, source, Merge::kAdd)};
}

Values index_copy(Call& call) { return {put_rows(call, call.tensor("source"), Merge::kAssign)}; }

Values index_fill(Call& call) {
  const Value self = call.tensor("self");
  // Of these operators, the only one for which negative indices count from the end.
  const Value filled = put_elements(at_least_1d(self), along(call, self, Negative::kWrap),
                                    call.number("value", self.dtype()), Merge::kAssign);
  return {sh::reshape(filled, self.dims())};
}

// --- The flattened tensor -----------------------------------------------------------------------

Values take(Call& call) {
  const Value self = sh::flatten(call.tensor("self"));
  return {
      take_elements(self, advanced_index(self.dims(), {call.tensor("index")}, Negative::kWrap))};
}

Values put(Call& call) {
  const Value self = call.tensor("self");
  const Value flat = sh::flatten(self);
  const Value where = sh::flatten(call.tensor("index"));
  const Merge merge = call.boolean("accumulate") ? Merge::kAdd : Merge::kAssign;
  const Value out = put_computed(flat, advanced_index(flat.dims(), {where}, Negative::kWrap),
                                 sh::flatten(call.tensor("source")), merge);
  return {sh::reshape(out, self.dims())};
}

// --- Masks --------------------------------------------------------------------------------------

// How many elements before each one the mask holds: its place among the chosen ones.
Value ranks(Value flat_mask) {
  const Value ones = sh::convert(flat_mask, ElementType::kS32);
  return sh::subtract(running_sum(ones, 0), sh::full_like(ones, 1));
}

Values masked_scatter(Call& call) {
  const Dims dims = sh::broadcast_shapes({call.tensor("self").dims(), call.tensor("mask").dims()});
  if (!sh::is_bool(call.tensor("mask").dtype())) {
    throw InvalidArgument("masked_scatter_: expected a boolean mask");
  }
  const Value self = sh::broadcast_to(call.tensor("self"), dims);
  const Value mask = as(call.tensor("mask"), ElementType::kPred, dims);
  const Value source = sh::flatten(sh::convert(call.tensor("source"), self.dtype()));
  if (self.numel() == 0 || source.numel() == 0) return {self};
  const Value flat = sh::flatten(mask);
  const Value chosen =
      take_elements(source, advanced_index(source.dims(), {ranks(flat)}, Negative::kAsIs));
  return {sh::select(mask, sh::reshape(chosen, dims), self)};
}

Values masked_scatter_backward(Call& call) {
  const Value grad = call.tensor("grad_output");
  const Dims sizes = call.ints("sizes");
  const int64_t count = sh::product(sizes);
  const Value none = zeros(call.builder(), grad.dtype(), {count});
  if (grad.numel() == 0 || count == 0) return {sh::reshape(none, sizes)};
  const Value mask = sh::flatten(as(call.tensor("mask"), ElementType::kPred, grad.dims()));
  const Value rank = ranks(mask);
  // What the mask leaves out goes beyond the end, which scatter passes over.
  const Value place = sh::select(mask, rank, sh::full_like(rank, count));
  const Value out = put_elements(none, advanced_index({count}, {place}, Negative::kAsIs),
                                 sh::flatten(grad), Merge::kAssign);
  return {sh::reshape(out, sizes)};
}

}  // namespace

void register_indexing(Registry& r) {
  r.add("aten::index.Tensor", index);
  r.add("aten::index.Tensor_out", index);
  r.add("aten::_unsafe_index.Tensor", index);
  r.add("aten::index_put", index_put);
  r.add("aten::_index_put_impl", index_put);
  r.add("aten::_unsafe_index_put", index_put);
  r.add("aten::_unsafe_masked_index", unsafe_masked_index);
  r.add("aten::index_select", index_select);
  r.add("aten::index_add", index_add);
  r.add("aten::index_copy", index_copy);
  r.add("aten::index_fill", index_fill);
  r.add("aten::take", take);
  r.add("aten::put", put);
  r.add("aten::masked_scatter", masked_scatter);
  r.add("aten::masked_scatter_backward", masked_scatter_backward);
  register_scatter(r);
  register_embedding(r);
}

}  // namespace torch_tpu::lowering
