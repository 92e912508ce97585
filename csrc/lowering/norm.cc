// Norms and distances.
#include <algorithm>
#include <cmath>

#include "lowering/expression.h"
#include "lowering/indexing.h"
#include "lowering/promotion.h"
#include "lowering/reduction.h"

namespace torch_tpu::lowering {

namespace sh = stablehlo;

Value norm_over(Value value, double p, const Dims& dims) {
  if (p == 0) return sum_over(sh::convert(is_nonzero(value), value.dtype()), dims);
  if (p == 2) return sh::sqrt(sum_over(sh::multiply(value, value), dims));
  const Value magnitude = sh::abs(value);
  if (p == 1) return sum_over(magnitude, dims);
  if (std::isinf(p)) return p > 0 ? max_over(magnitude, dims) : min_over(magnitude, dims);
  const Value sum = sum_over(sh::power(magnitude, constant_like(magnitude, p)), dims);
  return sh::power(sum, constant_like(sum, 1 / p));
}

namespace {

double known(const Call& call, std::string_view name, double otherwise) {
  if (!call.has(name)) return otherwise;
  const std::optional<double> number = call.known_number(name);
  if (!number) throw Unsupported(call.op() + ": '" + std::string(name) + "' must be known");
  return *number;
}

// `x` as real numbers with the same magnitudes, in the type to compute in.
Value magnitudes(Value x) {
  x = convert_halves(x);
  return sh::is_complex(x.dtype()) ? sh::abs(x) : x;
}

// norm calls its exponent p, linalg_vector_norm calls it ord.
Values norm(Call& call) {
  Value self = call.tensor("self");
  if (const auto dtype = call.dtype("dtype")) self = sh::convert(self, *dtype);
  if (sh::is_integer(self.dtype()) || sh::is_bool(self.dtype())) {
    throw Unsupported(call.op() + ": integers");
  }
  const Dims dims = reduced_dims(call, self.rank());
  const double p = known(call, call.find("ord") ? "ord" : "p", 2);
  if (std::isinf(p) && reduced_size(self.dims(), dims) == 0) {
    throw Unsupported(call.op() + ": the largest of no elements");
  }
  // |re + i im|^2 needs no square root.
  const Value result =
      sh::is_complex(self.dtype()) && p == 2
          ? sh::sqrt(sum_over(sh::add(sh::multiply(sh::real(self), sh::real(self)),
                                      sh::multiply(sh::imag(self), sh::imag(self))),
                              dims))
          : norm_over(magnitudes(self), p, dims);
  return {call.boolean("keepdim") ? keep_dims(result, self.dims(), dims) : result};
}

Values dist(Call& call) {
  const Values xs =
      broadcast_arguments(call, {"self", "other"}, result_type(call, {"self", "other"}));
  if (!sh::is_float(xs[0].dtype())) throw Unsupported("dist: not real floating point");
  const Value difference = sh::subtract(convert_halves(xs[0]), convert_halves(xs[1]));
  const double p = known(call, "p", 2);
  if (std::isinf(p) && difference.numel() == 0) {
    return {sh::scalar(call.builder(), difference.dtype(), 0.0)};
  }
  return {norm_over(difference, p, wrap_dims({}, difference.rank()))};
}

// x1 [..., P, M] - x2 [..., R, M] as [..., P, R, M].
Value pairwise_difference(Value x1, Value x2) {
  const auto batch = [](Value x) { return Dims(x.dims().begin(), x.dims().end() - 2); };
  Dims shape = sh::broadcast_shapes({batch(x1), batch(x2)});
  shape.push_back(x1.dim(x1.rank() - 2));
  shape.push_back(x2.dim(x2.rank() - 2));
  shape.push_back(x1.dim(x1.rank() - 1));
  x1 = sh::broadcast_to(sh::expand_dim(x1, x1.rank() - 1), shape);
  x2 = sh::broadcast_to(sh::expand_dim(x2, x2.rank() - 2), shape);
  return sh::subtract(x1, x2);
}

Values cdist_forward(Call& call) {
  const Value difference =
      pairwise_difference(convert_halves(call.tensor("x1")), convert_halves(call.tensor("x2")));
  const int64_t last = difference.rank() - 1;
  if (difference.dim(last) == 0) {
    Dims shape = difference.dims();
    shape.pop_back();
    return {sh::splat(call.builder(), TensorType{difference.dtype(), shape}, 0.0)};
  }
  return {norm_over(difference, known(call, "p", 2), {last})};
}

// The derivative of the p-norm of `difference` along its last dimension, times `grad`.
Value norm_derivative(Value difference, Value norm, Value grad, double p) {
  const Value zero = constant_like(difference, 0);
  if (p == 0) return zero;
  const Value direction = sh::sign(difference);
  if (p == 1) return sh::multiply(grad, direction);
  const Value magnitude = sh::abs(difference);
  if (std::isinf(p)) {
    return sh::select(sh::eq(magnitude, norm), sh::multiply(grad, direction), zero);
  }
  Value skip = sh::eq(norm, zero);
  Value derivative;
  if (p == 2) {
    derivative = sh::divide(sh::multiply(grad, difference), norm);
  } else {
    const Value exponent = constant_like(difference, p - 1);
    if (p < 1) skip = sh::or_(skip, sh::eq(difference, zero));
    derivative =
        sh::divide(sh::multiply(sh::multiply(direction, sh::power(magnitude, exponent)), grad),
                   sh::power(norm, exponent));
  }
  return sh::select(skip, zero, derivative);
}

Values cdist_backward(Call& call) {
  const Value x1 = convert_halves(call.tensor("x1"));
  if (call.tensor("grad").numel() == 0) {
    return {sh::splat(call.builder(), call.num_outputs() > 0 ? call.output() : x1.type(), 0.0)};
  }
  const Value difference = pairwise_difference(x1, convert_halves(call.tensor("x2")));
  const int64_t last = difference.rank() - 1;
  const auto per_pair = [&](std::string_view name) {
    return spread(sh::broadcast_to(convert_halves(call.tensor(name)),
                                   Dims(difference.dims().begin(), difference.dims().end() - 1)),
                  difference.dims(), {last});
  };
  const Value derivative =
      norm_derivative(difference, per_pair("cdist"), per_pair("grad"), known(call, "p", 2));
  return {sum_over(derivative, {last - 1})};
}

// Distances between the rows of one matrix, of each pair once: (0, 1), (0, 2) ... (1, 2) ...
Value pairs_before_row(Value row, int64_t n) {  // row (2n - row - 1) / 2
  return sh::divide(sh::multiply(row, sh::subtract(constant_like(row, 2.0 * n - 1), row)),
                    constant_like(row, 2));
}

Values pdist_forward(Call& call) {
  const Value x = call.tensor("self");
  if (!sh::is_float(x.dtype())) throw Unsupported("_pdist_forward: not real floating point");
  Builder& b = call.builder();
  const int64_t n = x.dim(0), pairs = n * (n - 1) / 2;
  if (pairs <= 0 || x.numel() == 0) {
    return {sh::splat(b, TensorType{x.dtype(), {std::max<int64_t>(pairs, 0)}}, 0.0)};
  }
  const Value all = norm_over(pairwise_difference(x, x), known(call, "p", 2), {2});
  const Value starts = pairs_before_row(sh::iota(b, TensorType{ElementType::kS32, {n}}, 0), n);
  const Value row = sh::convert(segment_of(starts, pairs), ElementType::kS32);
  const Value pair = sh::iota(b, row.type(), 0);
  const Value column =
      sh::add(sh::subtract(pair, pairs_before_row(row, n)), sh::add(row, constant_like(row, 1)));
  const Value place =
      sh::add(sh::multiply(row, constant_like(row, static_cast<double>(n))), column);
  return {take_along(sh::flatten(all), 0, place)};
}

Values pdist_backward(Call& call) {
  const Value x = call.tensor("self");
  if (!sh::is_float(x.dtype())) throw Unsupported("_pdist_backward: not real floating point");
  Builder& b = call.builder();
  const int64_t n = x.dim(0);
  if (n < 2 || x.numel() == 0) return {sh::splat(b, x.type(), 0.0)};
  const TensorType square{ElementType::kS32, {n, n}};
  const Value i = sh::iota(b, square, 0), j = sh::iota(b, square, 1);
  const Value row = sh::minimum(i, j), column = sh::maximum(i, j);
  const Value same = sh::eq(i, j);
  const Value pair =
      sh::subtract(sh::add(pairs_before_row(row, n), column), sh::add(row, constant_like(row, 1)));
  const Value place = sh::flatten(sh::select(same, constant_like(pair, 0), pair));
  const Value difference = pairwise_difference(x, x);
  const auto per_pair = [&](std::string_view name) {
    const Value all = sh::reshape(take_along(call.tensor(name), 0, place), {n, n});
    return spread(sh::select(same, constant_like(all, 0), all), difference.dims(), {2});
  };
  return {sum_over(
      norm_derivative(difference, per_pair("pdist"), per_pair("grad"), known(call, "p", 2)), {1})};
}

Values renorm(Call& call) {
  const Value x = convert_halves(call.tensor("self"));
  if (!sh::is_float(x.dtype())) throw Unsupported("renorm: not real floating point");
  const int64_t dim = wrap_dim(call.integer("dim"), x.rank());
  Dims others;
  for (int64_t d = 0; d < x.rank(); ++d) {
    if (d != dim) others.push_back(d);
  }
  const Value norm = norm_over(x, known(call, "p", 2), others);
  const Value limit = sh::broadcast_to(call.number("maxnorm", x.dtype()), norm.dims());
  const Value factor =
      sh::select(sh::gt(norm, limit), sh::divide(limit, sh::add(norm, constant_like(norm, 1e-7))),
                 constant_like(norm, 1));
  return {sh::multiply(x, spread(factor, x.dims(), others))};
}

}  // namespace

void register_norm(Registry& r) {
  const RuleOptions known_p{.known_numbers = {"p"}};
  r.add("aten::norm", norm, known_p);
  r.add("aten::linalg_vector_norm", norm, {.known_numbers = {"ord"}});
  r.add("aten::dist", dist, known_p);
  r.add("aten::_cdist_forward", cdist_forward, known_p);
  r.add("aten::_cdist_backward", cdist_backward, known_p);
  r.add("aten::_pdist_forward", pdist_forward, known_p);
  r.add("aten::_pdist_backward", pdist_backward, known_p);
  r.add("aten::renorm", renorm, known_p);
}

}  // namespace torch_tpu::lowering
