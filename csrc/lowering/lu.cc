// LU factorization with row pivoting, as a loop over columns, and what is computed from it.
#include "lowering/lu.h"

#include <algorithm>

#include "lowering/expression.h"
#include "lowering/linear_algebra.h"
#include "lowering/reduction.h"

namespace torch_tpu::lowering {

namespace sh = stablehlo;

Value positions(Builder& b, const Dims& dims, int64_t dim) {
  return sh::iota(b, TensorType{ElementType::kS32, dims}, dim);
}

Value spread_front(Value v, const Dims& dims) {
  return v.rank() == 0 ? sh::broadcast_in_dim(v, dims, {}) : sh::broadcast_in_dim(v, dims, {0});
}

Value row_at(Value a, Value row) {
  const Value here = sh::eq(positions(a.builder(), a.dims(), 1), spread_front(row, a.dims()));
  return sum_over(sh::select(here, a, constant_like(a, 0)), {1});
}

namespace {

Value column_at(Value a, Value column) {
  const Value start = number_of(a.builder(), TensorType{ElementType::kS32, {}}, 0);
  return sh::squeeze_dim(sh::dynamic_slice(a, {start, start, column}, {a.dim(0), a.dim(1), 1}), 2);
}

// The row with the largest magnitude at or below row `step`, per batch entry. Like LAPACK, complex
// numbers are compared by |re| + |im|.
Value best_row(Value column, Value step) {
  const Value magnitude = sh::is_complex(column.dtype())
                              ? sh::abs(sh::real(column)) + sh::abs(sh::imag(column))
                              : sh::abs(column);
  const Value rows = positions(column.builder(), column.dims(), 1);
  const Value open = sh::ge(rows, spread_front(step, column.dims()));
  const Value candidates = sh::select(open, magnitude, constant_like(magnitude, -1));
  return sh::convert(first_index_of(candidates, max_over(candidates, {1}), 1), ElementType::kS32);
}

}  // namespace

Value swapped(Value a, Value step, Value other) {
  const Value rows = positions(a.builder(), a.dims(), 1);
  const Value at_step = sh::eq(rows, spread_front(step, a.dims()));
  const Value at_other = sh::eq(rows, spread_front(other, a.dims()));
  const auto picked = [&](Value here) {
    return spread(sum_over(sh::select(here, a, constant_like(a, 0)), {1}), a.dims(), {1});
  };
  return sh::select(at_step, picked(at_other), sh::select(at_other, picked(at_step), a));
}

Lu factorize(Value a, bool pivot) {
  Builder& b = a.builder();
  const int64_t batch = a.dim(0), m = a.dim(1), n = a.dim(2), steps = std::min(m, n);
  const auto index = [&](const Dims& dims) { return TensorType{ElementType::kS32, dims}; };
  const Values init{number_of(b, index({}), 0), a, number_of(b, index({batch, steps}), 0),
                    positions(b, {batch, m}, 1), number_of(b, index({batch}), 0)};
  if (a.numel() == 0) return {a, init[2], init[3], init[4]};

  const auto body = [&](const Values& state) -> Values {
    const Value step = state[0];
    const Value best =
        pivot ? best_row(column_at(state[1], step), step) : sh::broadcast_to(step, {batch});
    const Value x = swapped(state[1], step, best);
    const Value pivots =
        sh::select(sh::eq(positions(b, {batch, steps}, 1), spread_front(step, {batch, steps})),
                   spread_front(best + 1.0, {batch, steps}), state[2]);
    const Value permutation = swapped(state[3], step, best);

    const Value upper = row_at(x, step);  // [B, n]
    const Value columns = positions(b, {batch, n}, 1);
    const Value diagonal = sum_over(sh::select(sh::eq(columns, spread_front(step, columns.dims())),
                                               upper, constant_like(upper, 0)),
                                    {1});
    const Value zero = sh::eq(diagonal, constant_like(diagonal, 0));
    const Value info = sh::select(sh::and_(zero, sh::eq(state[4], constant_like(state[4], 0))),
                                  spread_front(step + 1.0, {batch}), state[4]);
    // Below a zero pivot all is zero already.
    const Value divisor = sh::select(zero, constant_like(diagonal, 1), diagonal);
    const Value column = column_at(x, step);  // [B, m]
    const Value lower = column / spread_front(divisor, column.dims());

    const Value row_index = positions(b, x.dims(), 1), column_index = positions(b, x.dims(), 2);
    const Value at = spread_front(step, x.dims());
    const Value l = spread(lower, x.dims(), {2}), u = spread(upper, x.dims(), {1});
    const Value below = sh::gt(row_index, at);
    const Value updated =
        sh::select(sh::eq(column_index, at), l, sh::select(sh::gt(column_index, at), x - l * u, x));
    return {step + 1.0, sh::select(below, updated, x), pivots, permutation, info};
  };
  const auto condition = [&](const Values& state) -> Values {
    return {sh::lt(state[0], constant_like(state[0], static_cast<double>(steps)))};
  };
  const Values out = sh::while_(init, condition, body);
  return {out[1], out[2], out[3], out[4]};
}

namespace {

// The permutation that a sequence of row swaps makes of 0..m-1.
Value permutation_of(Value pivots, int64_t m) {
  Builder& b = pivots.builder();
  const int64_t batch = pivots.dim(0), steps = pivots.dim(1);
  if (pivots.numel() == 0) return positions(b, {batch, m}, 1);
  const Value zero = number_of(b, TensorType{ElementType::kS32, {}}, 0);
  const auto body = [&](const Values& state) -> Values {
    const Value other =
        sh::squeeze_dim(sh::dynamic_slice(pivots, {zero, state[0]}, {batch, 1}), 1) - 1.0;
    return {state[0] + 1.0, swapped(state[1], state[0], other)};
  };
  const auto condition = [&](const Values& state) -> Values {
    return {sh::lt(state[0], constant_like(state[0], static_cast<double>(steps)))};
  };
  return sh::while_({zero, positions(b, {batch, m}, 1)}, condition, body)[1];
}

// inverse[permutation[i]] = i
Value inverse_permutation(Value permutation) {
  const int64_t m = permutation.dim(1);
  const Dims pairs{permutation.dim(0), m, m};
  Builder& b = permutation.builder();
  const Value hit = sh::eq(spread(permutation, pairs, {1}), positions(b, pairs, 1));
  const Value source = positions(b, pairs, 2);
  return sum_over(sh::select(hit, source, constant_like(source, 0)), {2});
}

}  // namespace

Value permuted_rows(Value a, Value permutation) {
  const sh::GatherDims dims{.offset_dims = {2},
                            .collapsed_slice_dims = {1},
                            .operand_batching_dims = {0},
                            .start_indices_batching_dims = {0},
                            .start_index_map = {1},
                            .index_vector_dim = 2};
  return sh::gather(a, sh::expand_dim(permutation, 2), dims, {1, 1, a.dim(2)});
}

Value solve(Value factors, Value permutation, Value b, sh::Transpose transpose) {
  if (b.numel() == 0) return b;
  if (transpose == sh::Transpose::kNone) {
    const Value y = sh::triangular_solve(factors, permuted_rows(b, permutation), true, true, true,
                                         sh::Transpose::kNone);
    return sh::triangular_solve(factors, y, true, false, false, sh::Transpose::kNone);
  }
  const Value y = sh::triangular_solve(factors, b, true, false, false, transpose);
  const Value z = sh::triangular_solve(factors, y, true, true, true, transpose);
  return permuted_rows(z, inverse_permutation(permutation));
}

namespace {

void refuse_checks(const Call& call) {
  if (call.boolean("check_errors")) throw Unsupported(call.op() + ": check_errors");
}

Values lu_factor_ex(Call& call) {
  refuse_checks(call);
  const Value a = matrix_argument(call, "A");
  const Lu lu = factorize(flat_batch(a), call.boolean("pivot", true));
  const Dims batch = batch_dims(a);
  return {sh::reshape(lu.factors, a.dims()),
          sh::reshape(lu.pivots, with_batch(batch, {std::min(rows(a), columns(a))})),
          sh::reshape(lu.info, batch)};
}

// P, with P[permutation[i], i] = 1.
Value permutation_matrices(Value permutation, ElementType dtype) {
  const int64_t m = permutation.dim(1);
  const Dims pairs{permutation.dim(0), m, m};
  const Value hit =
      sh::eq(spread(permutation, pairs, {1}), positions(permutation.builder(), pairs, 1));
  return sh::convert(hit, dtype);
}

// L, with ones on its diagonal, and U.
Values triangles(Value factors) {
  const int64_t inner = std::min(rows(factors), columns(factors));
  const Value lower = lower_triangle(sh::slice_dim(factors, factors.rank() - 1, 0, inner));
  const TensorType index{ElementType::kS32, lower.dims()};
  const Value diagonal = sh::eq(sh::iota(factors.builder(), index, lower.rank() - 2),
                                sh::iota(factors.builder(), index, lower.rank() - 1));
  return {sh::select(diagonal, constant_like(lower, 1), lower),
          upper_triangle(sh::slice_dim(factors, factors.rank() - 2, 0, inner))};
}

Value nothing(Builder& b, ElementType dtype) { return number_of(b, TensorType{dtype, {0}}, 0); }

Values lu_unpacked(Call& call) {
  const Value a = matrix_argument(call, "A");
  const bool pivot = call.boolean("pivot", true);
  const Lu lu = factorize(flat_batch(a), pivot);
  const Values lower_upper = triangles(sh::reshape(lu.factors, a.dims()));
  const Value p = pivot ? sh::reshape(permutation_matrices(lu.permutation, a.dtype()),
                                      with_batch(batch_dims(a), {rows(a), rows(a)}))
                        : nothing(call.builder(), a.dtype());
  return {p, lower_upper[0], lower_upper[1]};
}

Values lu_unpack(Call& call) {
  const Value factors = matrix_argument(call, "LU_data");
  const Value pivots = sh::convert(call.tensor("LU_pivots"), ElementType::kS32);
  const Value none = nothing(call.builder(), factors.dtype());
  Values results{none, none, none};
  if (call.boolean("unpack_pivots", true)) {
    const Dims batch = batch_dims(factors);
    const int64_t m = rows(factors), steps = std::min(m, columns(factors));
    const Value swaps = sh::reshape(pivots, {sh::product(batch), steps});
    results[0] = sh::reshape(permutation_matrices(permutation_of(swaps, m), factors.dtype()),
                             with_batch(batch, {m, m}));
  }
  if (call.boolean("unpack_data", true)) {
    const Values lower_upper = triangles(factors);
    results[1] = lower_upper[0];
    results[2] = lower_upper[1];
  }
  return results;
}

Values lu_solve(Call& call) {
  Value factors = matrix_argument(call, "LU"), b = matrix_argument(call, "B");
  const Value pivots = call.tensor("pivots");
  const bool left = call.boolean("left", true), of_adjoint = call.boolean("adjoint");
  const Dims batch = sh::broadcast_shapes({batch_dims(factors), batch_dims(b)});
  const int64_t n = rows(factors), flat = sh::product(batch);
  factors = flat_batch(sh::broadcast_to(factors, with_batch(batch, {n, n})));
  b = sh::broadcast_to(b, with_batch(batch, {rows(b), columns(b)}));
  const Dims result = b.dims();
  b = flat_batch(b);
  if (b.numel() == 0) return {sh::reshape(b, result)};
  const Value swaps = sh::reshape(
      sh::broadcast_to(sh::convert(pivots, ElementType::kS32), with_batch(batch, {n})), {flat, n});
  const Value permutation = permutation_of(swaps, n);
  Value x;
  if (left) {
    x = solve(factors, permutation, b, of_adjoint ? sh::Transpose::kAdjoint : sh::Transpose::kNone);
  } else if (of_adjoint) {
    // X A^H = B is A X^H = B^H.
    x = adjoint(solve(factors, permutation, adjoint(b), sh::Transpose::kNone));
  } else {
    // X A = B is A^T X^T = B^T.
    x = matrix_transpose(
        solve(factors, permutation, matrix_transpose(b), sh::Transpose::kTranspose));
  }
  return {sh::reshape(x, result)};
}

Values inv_ex(Call& call) {
  refuse_checks(call);
  const Value a = matrix_argument(call, "A");
  const Value flat = flat_batch(a);
  const Lu lu = factorize(flat, true);
  const Value one = identity_matrices(call.builder(), a.dtype(), {flat.dim(0)}, rows(a));
  return {sh::reshape(solve(lu.factors, lu.permutation, one, sh::Transpose::kNone), a.dims()),
          sh::reshape(lu.info, batch_dims(a))};
}

}  // namespace

void register_lu(Registry& r) {
  r.add("aten::linalg_lu_factor_ex", lu_factor_ex);
  r.add("aten::linalg_lu", lu_unpacked);
  r.add("aten::lu_unpack", lu_unpack);
  r.add("aten::linalg_lu_solve", lu_solve);
  r.add("aten::linalg_inv_ex", inv_ex);
}

}  // namespace torch_tpu::lowering
