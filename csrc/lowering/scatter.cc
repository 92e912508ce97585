// gather, scatter and their reductions, along one dimension.
#include "lowering/indexing.h"
#include "lowering/promotion.h"
#include "lowering/typed_rule.h"

namespace torch_tpu::lowering {

namespace sh = stablehlo;

namespace {

// Combines updates into an operand, at the places the call names.
using Put = std::function<Value(Value operand, Value updates, Merge merge)>;

int64_t dimension(const Call& call) {
  return wrap_dim(call.integer("dim"), call.tensor("self").rank());
}

Values gather(Call& call) {
  return {take_along(call.tensor("self"), dimension(call), call.tensor("index"))};
}

Put put_along_dimension(const Call& call) {
  return [dim = dimension(call), index = call.tensor("index")](Value operand, Value updates,
                                                               Merge merge) {
    return put_along(operand, dim, index, updates, merge);
  };
}

// `src`, or `value` in the shape of the index.
Value source(const Call& call, ElementType dtype) {
  if (call.has("src")) return sh::convert(call.tensor("src"), dtype);
  return sh::broadcast_to(call.number("value", dtype), call.tensor("index").dims());
}

Merge combination(const Call& call, const std::string& reduce) {
  if (reduce == "sum" || reduce == "add" || reduce == "mean") return Merge::kAdd;
  if (reduce == "prod" || reduce == "multiply") return Merge::kMultiply;
  if (reduce == "amax") return Merge::kMax;
  if (reduce == "amin") return Merge::kMin;
  throw Unsupported(call.op() + ": reduce='" + reduce + "'");
}

Value floor_divide(Value a, Value b) {
  const Value quotient = sh::divide(a, b);
  const Value rest = sh::subtract(a, sh::multiply(quotient, b));
  // Counts are positive: only a negative dividend with a rest was rounded up.
  const Value below = sh::lt(rest, sh::full_like(rest, 0));
  return sh::select(below, sh::subtract(quotient, sh::full_like(quotient, 1)), quotient);
}

Value mean(const Put& put, Value sum, Value updates, bool include_self) {
  Builder& b = sum.builder();
  const ElementType type = sh::real_type(sum.dtype());
  const Value ones = sh::splat(b, {type, updates.dims()}, 1);
  Value counts = put(sh::splat(b, {type, sum.dims()}, include_self ? 1 : 0), ones, Merge::kAdd);
  counts = sh::maximum(counts, sh::full_like(counts, 1));
  if (sh::is_integer(type)) return floor_divide(sum, counts);
  return sh::divide(sum, sh::convert(counts, sum.dtype()));
}

Value reduce_into(const Call& call, const Put& put, Value self, Value updates,
                  const std::string& reduce, bool include_self) {
  const Merge merge = combination(call, reduce);
  Value base = self;
  if (!include_self) {
    // Elements that are met start from nothing; the others keep their value.
    base = put(self, identity(call.builder(), updates.type(), merge), Merge::kAssign);
  }
  const Value reduced = put(base, updates, merge);
  return reduce == "mean" ? mean(put, reduced, updates, include_self) : reduced;
}

Values scatter(Call& call) {
  const Value self = call.tensor("self");
  const Put put = put_along_dimension(call);
  if (!call.has("reduce")) {
    return {put(self, source(call, self.dtype()), Merge::kAssign)};
  }
  const ElementType type = compute_type(self.dtype());
  return {reduce_into(call, put, sh::convert(self, type), source(call, type), call.string("reduce"),
                      call.boolean("include_self", true))};
}

Values scatter_add(Call& call) {
  const Value self = call.tensor("self");
  const ElementType type = compute_type(self.dtype());
  return {put_along_dimension(call)(sh::convert(self, type), source(call, type), Merge::kAdd)};
}

Values index_reduce(Call& call) {
  const Value original = call.tensor("self"), source = call.tensor("source");
  if (original.rank() == 0 && call.tensor("index").numel() == 0) {
    throw InvalidArgument("index_reduce: no index into a tensor without dimensions",
                          InvalidArgument::Kind::kIndex);
  }
  if (source.rank() != original.rank() && source.numel() != 1) {
    throw InvalidArgument("index_reduce: self and source must have as many dimensions");
  }
  const Value self = at_least_1d(call.tensor("self"));
  const AdvancedIndex where = dimension_index(self.dims(), dimension(call),
                                              at_least_1d(call.tensor("index")), Negative::kAsIs);
  const Put put = [&](Value operand, Value updates, Merge merge) {
    return put_elements(operand, where, updates, merge);
  };
  const ElementType type = compute_type(self.dtype());
  const Value updates = sh::convert(at_least_1d(call.tensor("source")), type);
  const Value out = reduce_into(call, put, sh::convert(self, type), updates, call.string("reduce"),
                                call.boolean("include_self", true));
  return {sh::reshape(out, call.tensor("self").dims())};
}

}  // namespace

void register_scatter(Registry& r) {
  r.add("aten::gather", gather);
  r.add("aten::scatter", with_dtype_of("self", scatter));
  r.add("aten::scatter_reduce", with_dtype_of("self", scatter));
  r.add("aten::scatter_add", with_dtype_of("self", scatter_add));
  r.add("aten::index_reduce", with_dtype_of("self", index_reduce));
}

}  // namespace torch_tpu::lowering
