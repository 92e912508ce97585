// Cholesky and QR factorizations, and what is computed from them.
#include <algorithm>

#include "lowering/expression.h"
#include "lowering/linear_algebra.h"
#include "lowering/reduction.h"

namespace torch_tpu::lowering {

namespace sh = stablehlo;

namespace {

// An adjoint for the triangular factor that is not stored.
sh::Transpose adjoint_unless(bool plain) {
  return plain ? sh::Transpose::kNone : sh::Transpose::kAdjoint;
}

// The order of the first leading minor that is not positive, per matrix of `a` [B, n, n], among
// the matrices that `failed`; 0 for the others. Takes no step when none has failed.
Value first_bad_minor(Value a, Value failed) {
  Builder& b = a.builder();
  const int64_t batch = a.dim(0), n = a.dim(1);
  const TensorType counter{ElementType::kS32, {}};
  const Value zero = number_of(b, counter, 0);
  const auto condition = [&](const Values& state) -> Values {
    const Value open = sh::and_(failed, sh::eq(state[2], constant_like(state[2], 0)));
    const Value more = sh::lt(state[0], constant_like(state[0], static_cast<double>(n)));
    return {sh::and_(more, any_over(open, {0}))};
  };
  // One column of the outer product form of the factorization.
  const auto body = [&](const Values& state) -> Values {
    const Value step = state[0], x = state[1], info = state[2];
    const Value column = sh::dynamic_slice(x, {zero, zero, step}, {batch, n, 1});
    const Value diagonal =
        sh::reshape(sh::dynamic_slice(column, {zero, step, zero}, {batch, 1, 1}), {batch});
    const Value pivot = sh::is_complex(x.dtype()) ? sh::real(diagonal) : diagonal;
    const Value bad = sh::not_(sh::gt(pivot, constant_like(pivot, 0)));
    const Value open = sh::and_(failed, sh::eq(info, constant_like(info, 0)));
    const Value order = sh::broadcast_to(step + 1.0, {batch});
    const Value scaled = column / sh::broadcast_in_dim(diagonal, column.dims(), {0});
    const Value row = sh::dynamic_slice(x, {zero, step, zero}, {batch, 1, n});
    const Value product = sh::broadcast_to(scaled, x.dims()) * sh::broadcast_to(row, x.dims());
    return {step + 1.0, x - product, sh::select(sh::and_(open, bad), order, info)};
  };
  const TensorType info{ElementType::kS32, {batch}};
  return sh::while_({zero, a, number_of(b, info, 0)}, condition, body)[2];
}

Values cholesky_ex(Call& call) {
  if (call.boolean("check_errors")) throw Unsupported("linalg_cholesky_ex: check_errors");
  const Value a = matrix_argument(call, "self");
  const bool upper = call.boolean("upper");
  const Dims batch = batch_dims(a);
  if (a.numel() == 0) {
    return {a, number_of(call.builder(), TensorType{ElementType::kS32, batch}, 0)};
  }
  const Value factor =
      upper ? upper_triangle(sh::cholesky(a, false)) : lower_triangle(sh::cholesky(a, true));
  // The compiler's algorithm says that it failed with NaN, but not where.
  const Dims flat{sh::product(batch), rows(a), columns(a)};
  const Value real = sh::is_complex(a.dtype()) ? sh::real(factor) : factor;
  const Value failed = any_over(sh::reshape(is_nan(real), flat), {1, 2});
  const Value info = first_bad_minor(sh::reshape(hermitian(a, upper), flat), failed);
  return {factor, sh::reshape(info, batch)};
}

// Solves A x = b given the Cholesky factor of A.
Value solve_with_factor(Value factor, Value b, bool upper) {
  if (b.numel() == 0) return b;
  const Value y = sh::triangular_solve(factor, b, true, !upper, false, adjoint_unless(!upper));
  return sh::triangular_solve(factor, y, true, !upper, false, adjoint_unless(upper));
}

Values cholesky_solve(Call& call) {
  Value b = matrix_argument(call, "self"), factor = matrix_argument(call, "input2");
  broadcast_batches(factor, b);
  return {solve_with_factor(factor, b, call.boolean("upper"))};
}

Values cholesky_inverse(Call& call) {
  const Value factor = matrix_argument(call, "self");
  const Value one =
      identity_matrices(call.builder(), factor.dtype(), batch_dims(factor), rows(factor));
  return {solve_with_factor(factor, one, call.boolean("upper"))};
}

// --- QR -----------------------------------------------------------------------------------------

}  // namespace

Reflectors reflect(Value a) {
  const int64_t count = std::min(rows(a), columns(a));
  const TensorType factors{a.dtype(), with_batch(batch_dims(a), {count})};
  const Values out =
      sh::custom_call(a.builder(), "Qr", {a}, {a.type(), factors}, "", /*api_version=*/1);
  return {out[0], out[1]};
}

namespace {

// `value` grown with zeros, or cut, along one dimension.
Value resized(Value value, int64_t dim, int64_t size) {
  Dims low(value.dims().size(), 0), high = low;
  high[static_cast<size_t>(dim)] = size - value.dim(dim);
  return sh::pad(value, number_of(value.builder(), TensorType{value.dtype(), {}}, 0), low, high);
}

}  // namespace

Value reflectors_product(Reflectors r, int64_t count) {
  r.packed = resized(r.packed, r.packed.rank() - 1, count);
  // A factor of zero is a reflector that does nothing.
  r.factors = resized(r.factors, r.factors.rank() - 1, count);
  return sh::custom_call(r.packed.builder(), "ProductOfElementaryHouseholderReflectors",
                         {r.packed, r.factors}, {r.packed.type()}, "", /*api_version=*/1)[0];
}

namespace {

Values qr(Call& call) {
  const Value a = matrix_argument(call, "A");
  const std::string mode = call.string("mode", "reduced");
  const int64_t least = std::min(rows(a), columns(a));
  const int64_t inner = mode == "complete" ? rows(a) : least;
  if (a.numel() == 0) {
    Builder& b = call.builder();
    const Dims batch = batch_dims(a);
    const Value one = identity_matrices(b, a.dtype(), batch, rows(a));
    const Value q = mode == "r" ? number_of(b, TensorType{a.dtype(), {0}}, 0)
                                : sh::slice_dim(one, one.rank() - 1, 0, inner);
    return {q, number_of(b, TensorType{a.dtype(), with_batch(batch, {inner, columns(a)})}, 0)};
  }
  const Reflectors r = reflect(a);
  const Value upper = upper_triangle(sh::slice_dim(r.packed, a.rank() - 2, 0, inner));
  if (mode == "r") return {number_of(call.builder(), TensorType{a.dtype(), {0}}, 0), upper};
  return {reflectors_product(r, inner), upper};
}

Values geqrf(Call& call) {
  const Value a = matrix_argument(call, "self");
  if (a.numel() == 0) {
    const Dims factors = with_batch(batch_dims(a), {std::min(rows(a), columns(a))});
    return {a, number_of(call.builder(), TensorType{a.dtype(), factors}, 0)};
  }
  const Reflectors r = reflect(a);
  return {r.packed, r.factors};
}

Values householder_product(Call& call) {
  const Value a = matrix_argument(call, "input");
  const Value tau = call.tensor("tau");
  if (rows(a) < columns(a)) throw Unsupported("linalg_householder_product: a wide matrix");
  if (a.numel() == 0) return {a};
  return {reflectors_product({a, tau}, columns(a))};
}

// Multiplies by the whole orthogonal matrix, from either side.
Values ormqr(Call& call) {
  const Value a = matrix_argument(call, "self"), other = matrix_argument(call, "input3");
  if (other.numel() == 0) return {other};
  Value q = reflectors_product({a, call.tensor("input2")}, rows(a));
  if (call.boolean("transpose")) q = adjoint(q);
  return {call.boolean("left", true) ? matrix_product(q, other) : matrix_product(other, q)};
}

}  // namespace

void register_factorization(Registry& r) {
  r.add("aten::linalg_cholesky_ex", cholesky_ex);
  r.add("aten::cholesky_solve", cholesky_solve);
  r.add("aten::cholesky_inverse", cholesky_inverse);
  r.add("aten::linalg_qr", qr);
  r.add("aten::geqrf", geqrf);
  r.add("aten::linalg_householder_product", householder_product);
  r.add("aten::ormqr", ormqr);
}

}  // namespace torch_tpu::lowering
