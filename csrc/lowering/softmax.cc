#include "lowering/expression.h"
#include "lowering/indexing.h"
#include "lowering/joined_rows.h"
#include "lowering/normalization.h"
#include "lowering/promotion.h"
#include "lowering/reduction.h"

namespace torch_tpu::lowering {

namespace sh = stablehlo;

namespace {

// A value with at least one dimension, in the type to compute in, and the dimension to go along.
struct Along {
  Value x;
  int64_t dim;
};

Along along(const Call& call, Value self, std::string_view name = "dim") {
  const bool last = self.rank() == 2 && wrap_dim(call.integer(name), 2) == 1;
  const Value x = convert_halves(at_least_1d(last ? rows_apart(self) : self));
  if (sh::is_integer(x.dtype()) || sh::is_bool(x.dtype())) {
    throw InvalidArgument(call.op() + ": expected a floating point tensor, got " +
                              std::string(sh::name(x.dtype())) + "; convert it or give dtype=",
                          InvalidArgument::Kind::kNotImplemented);
  }
  if (!sh::is_float(x.dtype())) throw Unsupported(call.op() + ": not real floating point");
  return {x, last ? x.rank() - 1 : wrap_dim(call.integer(name), x.rank())};
}

// Back to the shape that `along` may have changed.
Value like_argument(Value result, Value argument) { return sh::reshape(result, argument.dims()); }

Value spread_along(Value reduced, Value like, int64_t dim) {
  return spread(reduced, like.dims(), {dim});
}

Value softmax_along(Value x, int64_t dim) {
  const Value shifted = sh::subtract(x, spread_along(max_over(x, {dim}), x, dim));
  const Value e = sh::exponential(shifted);
  return sh::divide(e, spread_along(sum_over(e, {dim}), x, dim));
}

Values softmax(Call& call) {
  const Value self = call.tensor("self");
  const auto [x, dim] = along(call, self);
  return {like_argument(softmax_along(x, dim), self)};
}

Values log_softmax(Call& call) {
  const Value self = call.tensor("self");
  const auto [x, dim] = along(call, self);
  const Value shifted = sh::subtract(x, spread_along(max_over(x, {dim}), x, dim));
  const Value log_sum = sh::log(sum_over(sh::exponential(shifted), {dim}));
  return {like_argument(sh::subtract(shifted, spread_along(log_sum, x, dim)), self)};
}

// Rows of -inf alone give 0 where softmax gives NaN.
Values safe_softmax(Call& call) {
  Value self = call.tensor("self");
  if (const auto dtype = call.dtype("dtype")) self = sh::convert(self, *dtype);
  const auto [x, dim] = along(call, self);
  const Value masked = all_over(sh::eq(x, sh::lowest(call.builder(), x.type())), {dim});
  const Value result =
      sh::select(spread_along(masked, x, dim), constant_like(x, 0), softmax_along(x, dim));
  return {like_argument(result, self)};
}

Values softmax_backward(Call& call) {
  const Value output = call.tensor("output");
  const auto [y, dim] = along(call, output);
  const Value grad = sh::convert(sh::reshape(call.tensor("grad_output"), y.dims()), y.dtype());
  const Value weighted = sh::multiply(grad, y);
  const Value total = spread_along(sh::negate(sum_over(weighted, {dim})), y, dim);
  return {like_argument(sh::multiply(y, sh::add(grad, total)), output)};
}

Values log_softmax_backward(Call& call) {
  const Value output = call.tensor("output");
  const auto [y, dim] = along(call, output);
  const Value grad = sh::convert(sh::reshape(call.tensor("grad_output"), y.dims()), y.dtype());
  const Value total = spread_along(sum_over(grad, {dim}), y, dim);
  return {like_argument(sh::subtract(grad, sh::multiply(sh::exponential(y), total)), output)};
}

// mask is true where an element does not take part. It may be [L, L] (mask_type 0) or [B, L]
// (1) for scores [B, heads, L, L], or of the scores' own shape (2).
Value full_mask(const Call& call, Value x) {
  Value mask = is_nonzero(call.tensor("mask"));
  if (call.integer_or("mask_type", 2) == 1) {
    if (mask.rank() != 2) throw Unsupported("_masked_softmax: a mask that is not [B, L]");
    mask = sh::reshape(mask, {mask.dim(0), 1, 1, mask.dim(1)});
  }
  return sh::broadcast_to(mask, x.dims());
}

Values masked_softmax(Call& call) {
  const Value x = convert_halves(call.tensor("self"));
  if (!sh::is_float(x.dtype()) || x.rank() == 0) throw Unsupported("_masked_softmax: this input");
  const int64_t dim = wrap_dim(call.integer_or("dim", -1), x.rank());
  const Value mask = full_mask(call, x);
  const Value kept = sh::select(mask, sh::lowest(call.builder(), x.type()), x);
  return {softmax_along(kept, dim)};
}

Values masked_softmax_backward(Call& call) {
  const Value y = convert_halves(call.tensor("output"));
  if (!sh::is_float(y.dtype()) || y.rank() == 0) {
    throw Unsupported("_masked_softmax_backward: this input");
  }
  const int64_t dim = wrap_dim(call.integer_or("dim", -1), y.rank());
  const Value zero = constant_like(y, 0);
  const Value mask = full_mask(call, y);
  const Value grad = sh::convert(call.tensor("grad_output"), y.dtype());
  const Value weighted = sh::select(mask, zero, sh::multiply(grad, y));
  const Value total = spread_along(sum_over(weighted, {dim}), y, dim);
  return {sh::select(mask, zero, sh::subtract(weighted, sh::multiply(y, total)))};
}

}  // namespace

void register_softmax(Registry& r) {
  r.add("aten::_softmax", softmax);
  r.add("aten::_log_softmax", log_softmax);
  r.add("aten::_safe_softmax", safe_softmax);
  r.add("aten::_softmax_backward_data", softmax_backward);
  r.add("aten::_log_softmax_backward_data", log_softmax_backward);
  r.add("aten::_masked_softmax", masked_softmax);
  r.add("aten::_masked_softmax_backward", masked_softmax_backward);
}

}  // namespace torch_tpu::lowering
