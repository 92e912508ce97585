// Determinants and the solution of linear systems, which keep an LU factorization for the backward.
//
// As PyTorch's kernels do, a determinant factorizes a contiguous real matrix transposed: the
// backward formulas look at the argument's layout to know which factorization they have got.
#include "lowering/expression.h"
#include "lowering/lu.h"
#include "lowering/reduction.h"

namespace torch_tpu::lowering {

namespace sh = stablehlo;

namespace {

bool factorized_transposed(const Call& call) {
  return call.tensor_argument("A").contiguous && !sh::is_complex(call.tensor("A").dtype());
}

struct Factorization {
  Lu lu;
  Value factors, pivots;  // in the argument's batch shape
};

Factorization factorized(Value a, bool transposed) {
  const Lu lu = factorize(flat_batch(transposed ? matrix_transpose(a) : a), true);
  return {lu, sh::reshape(lu.factors, a.dims()),
          sh::reshape(lu.pivots, with_batch(batch_dims(a), {rows(a)}))};
}

// U's diagonal, [B, n].
Value diagonal(Value factors) {
  const TensorType index{ElementType::kS32, factors.dims()};
  Builder& b = factors.builder();
  const Value here = sh::eq(sh::iota(b, index, 1), sh::iota(b, index, 2));
  return sum_over(choose(here, factors, 0.0), {2});
}

// -1 where the number of row swaps is odd, else 1; [B], of the given type.
Value parity(Value pivots, ElementType dtype) {
  const Value unmoved = sh::iota(pivots.builder(), pivots.type(), 1) + 1.0;
  const Value swaps = sum_over(sh::convert(differs(pivots, unmoved), ElementType::kS32), {1});
  return sh::convert(1.0 - 2.0 * (swaps & constant_like(swaps, 1)), dtype);
}

Values det(Call& call) {
  const Value a = matrix_argument(call, "A");
  const Factorization f = factorized(a, factorized_transposed(call));
  const Value entries = diagonal(f.lu.factors);
  const Value result = sh::reduce_prod(entries, {1}) * parity(f.lu.pivots, entries.dtype());
  return {sh::reshape(result, batch_dims(a)), f.factors, f.pivots};
}

Values slogdet(Call& call) {
  const Value a = matrix_argument(call, "A");
  const Factorization f = factorized(a, factorized_transposed(call));
  const Dims batch = batch_dims(a);
  const Value entries = diagonal(f.lu.factors);
  const Value sign = sh::reduce_prod(sh::sign(entries), {1}) * parity(f.lu.pivots, entries.dtype());
  const Value logarithm = sum_over(sh::log(sh::abs(entries)), {1});
  return {sh::reshape(sign, batch), sh::reshape(logarithm, batch), f.factors, f.pivots};
}

// b is a batch of vectors, by the rules of torch.linalg.solve.
bool is_vector(Value a, Value b) {
  if (b.rank() == 1) return true;
  return a.rank() - 1 == b.rank() && Dims(a.dims().begin(), a.dims().end() - 1) == b.dims();
}

Values solve_ex(Call& call) {
  if (call.boolean("check_errors")) throw Unsupported("_linalg_solve_ex: check_errors");
  const Value a = matrix_argument(call, "A");
  const Factorization f = factorized(a, false);
  Value b = call.tensor("B");
  const bool vector = is_vector(a, b);
  if (vector) b = sh::expand_dim(b, b.rank());
  const bool left = call.boolean("left", true);

  const int64_t n = rows(a);
  const Dims batch = sh::broadcast_shapes({batch_dims(a), batch_dims(b)});
  const int64_t flat = sh::product(batch);
  b = sh::broadcast_to(b, with_batch(batch, {rows(b), columns(b)}));
  Dims result = b.dims();
  const Value factors =
      sh::reshape(sh::broadcast_to(f.factors, with_batch(batch, {n, n})), {flat, n, n});
  const Dims own = batch_dims(a);
  const Value permutation = sh::reshape(
      sh::broadcast_to(sh::reshape(f.lu.permutation, with_batch(own, {n})), with_batch(batch, {n})),
      {flat, n});
  b = flat_batch(b);
  // From the right, X A = b is A^T X^T = b^T.
  const Value x = left ? solve(factors, permutation, b, sh::Transpose::kNone)
                       : matrix_transpose(solve(factors, permutation, matrix_transpose(b),
                                                sh::Transpose::kTranspose));
  if (vector) result.pop_back();
  return {sh::reshape(x, result), f.factors, f.pivots, sh::reshape(f.lu.info, own)};
}

}  // namespace

void register_determinant(Registry& r) {
  r.add("aten::_linalg_det", det);
  r.add("aten::_linalg_slogdet", slogdet);
  r.add("aten::_linalg_solve_ex", solve_ex);
}

}  // namespace torch_tpu::lowering
