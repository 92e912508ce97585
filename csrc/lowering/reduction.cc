#include "lowering/reduction.h"

#include <algorithm>
#include <numeric>

#include "lowering/expression.h"
#include "lowering/families.h"
#include "lowering/indexing.h"
#include "lowering/joined_rows.h"
#include "lowering/promotion.h"

namespace torch_tpu::lowering {

namespace sh = stablehlo;

Dims reduced_dims(const Call& call, int64_t rank, std::string_view name) {
  return wrap_dims(call.ints(name), rank);
}

int64_t reduced_size(const Dims& shape, const Dims& dims) {
  int64_t n = 1;
  for (const int64_t d : dims) n *= shape[static_cast<size_t>(d)];
  return n;
}

namespace {

bool contains(const Dims& dims, int64_t d) {
  return std::find(dims.begin(), dims.end(), d) != dims.end();
}

}  // namespace

Value keep_dims(Value reduced, const Dims& shape, const Dims& dims) {
  if (dims.empty()) return reduced;
  Dims kept = shape;
  for (const int64_t d : dims) kept[static_cast<size_t>(d)] = 1;
  return sh::reshape(reduced, kept);
}

Value spread(Value reduced, const Dims& shape, const Dims& dims) {
  if (dims.empty()) return reduced;
  Dims mapping;
  for (int64_t d = 0; d < static_cast<int64_t>(shape.size()); ++d) {
    if (!contains(dims, d)) mapping.push_back(d);
  }
  return sh::broadcast_in_dim(reduced, shape, mapping);
}

namespace {

using Reduce = Value (*)(Value, const Dims&);

// Reduces everything in two steps when that makes inner loops out of independent sums: all but the
// last dimension, then the last one. The barrier keeps the compiler from merging the steps again.
Value reduce_over(Value value, const Dims& dims, Reduce reduce) {
  constexpr int64_t kLanes = 16;
  if (dims.empty()) return value;
  if (const Value apart = rows_apart(value); apart.rank() > value.rank() && dims == Dims{0}) {
    Dims rows(static_cast<size_t>(apart.rank() - 1));
    std::iota(rows.begin(), rows.end(), 0);
    return reduce(apart, rows);
  }
  const int64_t last = value.rank() - 1;
  const bool everything = static_cast<int64_t>(dims.size()) == value.rank();
  if (!everything || last == 0 || value.dim(last) < kLanes) return reduce(value, dims);
  const Value lanes = reduce(value, Dims(dims.begin(), dims.end() - 1));
  return reduce(sh::optimization_barrier({lanes})[0], {0});
}

}  // namespace

Value sum_over(Value value, const Dims& dims) { return reduce_over(value, dims, sh::reduce_sum); }
Value max_over(Value value, const Dims& dims) { return reduce_over(value, dims, sh::reduce_max); }
Value min_over(Value value, const Dims& dims) { return reduce_over(value, dims, sh::reduce_min); }
Value any_over(Value value, const Dims& dims) { return reduce_over(value, dims, sh::reduce_or); }
Value all_over(Value value, const Dims& dims) { return reduce_over(value, dims, sh::reduce_and); }

Value mean_over(Value value, const Dims& dims) {
  const Value sum = sum_over(value, dims);
  return sh::divide(sum, constant_like(sum, static_cast<double>(reduced_size(value.dims(), dims))));
}

Value first_index_of(Value value, Value extreme, int64_t dim) {
  const int64_t n = value.dim(dim);
  // 32-bit positions: 64-bit integers are slow on a TPU.
  const TensorType type{n <= INT32_MAX ? ElementType::kS32 : ElementType::kS64, value.dims()};
  Builder& b = value.builder();
  const Value hit = sh::or_(sh::eq(value, spread(extreme, value.dims(), {dim})), is_nan(value));
  const Value position = sh::select(hit, sh::iota(b, type, dim), sh::splat(b, type, n));
  return sh::convert(sh::reduce_min(position, {dim}), ElementType::kS64);
}

Value number_of(Builder& builder, const TensorType& type, double number) {
  if (sh::is_complex(type.dtype)) return sh::splat(builder, type, std::complex<double>(number));
  if (sh::is_bool(type.dtype)) return sh::splat(builder, type, number != 0);
  if (sh::is_integer(type.dtype)) return sh::splat(builder, type, static_cast<int64_t>(number));
  return sh::splat(builder, type, number);
}

Value is_nonzero(Value value) {
  if (sh::is_bool(value.dtype())) return value;
  return sh::ne(value, constant_like(value, 0));
}

Value convert_halves(Value value) { return sh::convert(value, compute_type(value.dtype())); }

namespace {

// --- Sums and products --------------------------------------------------------------------------

// The result's dtype: the one asked for, else int64 for integers and bools.
ElementType sum_dtype(const Call& call, Value self) {
  if (const auto dtype = call.dtype("dtype")) return *dtype;
  if (call.num_outputs() > 0) return call.output().dtype;
  const ElementType t = self.dtype();
  return sh::is_bool(t) || sh::is_integer(t) ? ElementType::kS64 : t;
}

// PyTorch converts to the result's dtype first, but sums halves in float32.
Value converted_for_sum(const Call& call, Value self) {
  return convert_halves(sh::convert(self, sum_dtype(call, self)));
}

Value finish(const Call& call, Value reduced, const Dims& shape, const Dims& dims) {
  return call.boolean("keepdim") ? keep_dims(reduced, shape, dims) : reduced;
}

Values sum(Call& call) {
  const Value self = call.tensor("self");
  const Dims dims = reduced_dims(call, self.rank());
  const Value x = converted_for_sum(call, self);
  const Value total = sh::is_bool(x.dtype()) ? any_over(x, dims) : sum_over(x, dims);
  return {finish(call, total, self.dims(), dims)};
}

Values nansum(Call& call) {
  const Value self = call.tensor("self");
  if (sh::is_complex(self.dtype())) throw Unsupported("nansum: complex numbers");
  const Dims dims = reduced_dims(call, self.rank());
  const Value x = converted_for_sum(call, self);
  const Value clean = sh::select(is_nan(x), constant_like(x, 0), x);
  return {finish(call, sum_over(clean, dims), self.dims(), dims)};
}

Values mean(Call& call) {
  const Value self = call.tensor("self");
  const Dims dims = reduced_dims(call, self.rank());
  const Value x = converted_for_sum(call, self);
  if (sh::is_integer(x.dtype()) || sh::is_bool(x.dtype())) {
    throw Unsupported("mean: the result is not floating point");
  }
  return {finish(call, mean_over(x, dims), self.dims(), dims)};
}

Values prod(Call& call) {
  const Value self = call.tensor("self");
  const Dims dims = reduced_dims(call, self.rank());
  const Value x = converted_for_sum(call, self);
  const Value result = dims.empty()             ? x
                       : sh::is_bool(x.dtype()) ? all_over(x, dims)
                                                : sh::reduce_prod(x, dims);
  return {finish(call, result, self.dims(), dims)};
}

Values count_nonzero(Call& call) {
  const Value self = call.tensor("self");
  const Dims dims = reduced_dims(call, self.rank());
  return {sum_over(sh::convert(is_nonzero(self), ElementType::kS64), dims)};
}

Values trace(Call& call) {
  const Value self = call.tensor("self");
  const Value x = converted_for_sum(call, self);
  const TensorType index{ElementType::kS32, x.dims()};
  const Value diagonal =
      sh::eq(sh::iota(call.builder(), index, 0), sh::iota(call.builder(), index, 1));
  return {sum_over(sh::select(diagonal, x, constant_like(x, 0)), {0, 1})};
}

// --- Extremes -----------------------------------------------------------------------------------

using Extreme = Value (*)(Value, const Dims&);

Value ordered_self(const Call& call) {
  const Value self = call.tensor("self");
  if (sh::is_complex(self.dtype())) throw Unsupported(call.op() + ": complex numbers");
  return self;
}

void require_elements(const Call& call, Value self) {
  if (self.numel() == 0) throw Unsupported(call.op() + ": all of an empty tensor");
}

// max, min: of everything, or with indices along one dimension.
template <Extreme extreme>
Values extreme_rule(Call& call) {
  const Value self = ordered_self(call);
  if (call.has("other")) throw Unsupported(call.op() + ": with another tensor");
  if (!call.has("dim")) {
    require_elements(call, self);
    return {extreme(self, wrap_dims({}, self.rank()))};
  }
  const Value x = at_least_1d(self);
  const int64_t dim = wrap_dim(call.integer("dim"), x.rank());
  if (x.dims()[static_cast<size_t>(dim)] == 0) {
    throw InvalidArgument(
        call.op() + ": Expected reduction dim " + std::to_string(dim) + " to have non-zero size.",
        InvalidArgument::Kind::kIndex);
  }
  const Value values = extreme(x, {dim});
  const Value indices = first_index_of(x, values, dim);
  if (self.rank() == 0) return {values, indices};
  return {finish(call, values, x.dims(), {dim}), finish(call, indices, x.dims(), {dim})};
}

// amax, amin
template <Extreme extreme>
Values extreme_value_rule(Call& call) {
  const Value self = ordered_self(call);
  const Dims dims = reduced_dims(call, self.rank());
  return {finish(call, extreme(self, dims), self.dims(), dims)};
}

Values aminmax(Call& call) {
  const Value self = ordered_self(call);
  const Dims dims = reduced_dims(call, self.rank());
  if (!call.has("dim")) require_elements(call, self);
  for (size_t i = 0; i < call.num_outputs(); ++i) {
    if (call.output(i).dtype != call.tensor("self").dtype()) {
      throw InvalidArgument("aminmax: 'out' does not have the dtype of the input");
    }
  }
  return {finish(call, min_over(self, dims), self.dims(), dims),
          finish(call, max_over(self, dims), self.dims(), dims)};
}

template <Extreme extreme>
Values argument_rule(Call& call) {
  const Value self = ordered_self(call);
  if (sh::is_bool(self.dtype())) throw Unsupported(call.op() + ": bool");
  const bool whole = !call.has("dim");
  const Value x = whole ? sh::flatten(self) : at_least_1d(self);
  const int64_t dim = whole ? 0 : wrap_dim(call.integer("dim"), x.rank());
  const Value index = first_index_of(x, extreme(x, {dim}), dim);
  if (!call.boolean("keepdim") || self.rank() == 0) return {index};
  return {keep_dims(index, self.dims(), whole ? wrap_dims({}, self.rank()) : Dims{dim})};
}

// --- Truth --------------------------------------------------------------------------------------

template <Extreme over>
Values truth_rule(Call& call) {
  const Value self = call.tensor("self");
  const Value x = is_nonzero(self);
  // any.dims: an empty list means no dimension, None means all.
  if (call.has("dim") && call.ints("dim").empty()) return {x};
  const Dims dims = reduced_dims(call, self.rank());
  return {finish(call, over(x, dims), self.dims(), dims)};
}

Values logsumexp(Call& call) {
  const Value self = ordered_self(call);
  const Dims dims = reduced_dims(call, self.rank());
  const Value x = convert_halves(sh::convert(self, to_floating(self.dtype())));
  const Value highest = max_over(x, dims);
  // An infinite maximum would give inf - inf.
  const Value shift = sh::select(sh::is_finite(highest), highest, constant_like(highest, 0));
  const Value sum = sum_over(sh::exponential(sh::subtract(x, spread(shift, x.dims(), dims))), dims);
  return {finish(call, sh::add(sh::log(sum), shift), self.dims(), dims)};
}

}  // namespace

void register_reduction(Registry& r) {
  r.add("aten::sum", sum);
  r.add("aten::nansum", nansum);
  r.add("aten::mean", mean);
  r.add("aten::prod", prod);
  r.add("aten::count_nonzero", count_nonzero);
  r.add("aten::trace", trace);
  r.add("aten::max", extreme_rule<max_over>);
  r.add("aten::min", extreme_rule<min_over>);
  r.add("aten::amax", extreme_value_rule<max_over>);
  r.add("aten::amin", extreme_value_rule<min_over>);
  r.add("aten::aminmax", aminmax);
  r.add("aten::_aminmax", aminmax);
  r.add("aten::argmax", argument_rule<max_over>);
  r.add("aten::argmin", argument_rule<min_over>);
  r.add("aten::any", truth_rule<any_over>);
  r.add("aten::all", truth_rule<all_over>);
  r.add("aten::logsumexp", logsumexp);
  register_norm(r);
  register_segment_reduce(r);
  register_hash_tensor(r);
  register_statistics(r);
}

}  // namespace torch_tpu::lowering
