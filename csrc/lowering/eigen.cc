// Eigenvalues of Hermitian matrices, by Jacobi's method, which each compiler has built in, and a
// step of refinement: the built-in method knows how far it has come to half the digits only.
//
// Ogita and Aishima, "Iterative refinement for symmetric eigenvalue decomposition", 2018.
#include "lowering/expression.h"
#include "lowering/linear_algebra.h"
#include "lowering/reduction.h"
#include "lowering/sorting.h"

namespace torch_tpu::lowering {

namespace sh = stablehlo;

namespace {

// The method's work grows faster than that of the CPU's library.
constexpr int64_t kLargest = 256;

Value real_part(Value a) { return sh::is_complex(a.dtype()) ? sh::real(a) : a; }

Value frobenius(Value a) { return sh::sqrt(sum_over(real_part(a * conjugated(a)), {1, 2})); }

struct Eigen {
  Value values, vectors;  // [B, n], [B, n, n]
};

Eigen refined(Value a, Value x) {
  const Dims batch{a.dim(0)};
  const Dims& pairs = x.dims();
  const Value one = identity_matrices(a.builder(), a.dtype(), batch, rows(a));
  const Value off = one - matrix_product(adjoint(x), x);  // from orthogonality
  const Value s = matrix_product(adjoint(x), matrix_product(a, x));
  const auto diagonal = [&](Value v) { return sum_over(real_part(v * one), {2}); };
  const Value values = diagonal(s) / (1.0 - diagonal(off));

  const Value of_column = sh::broadcast_in_dim(values, pairs, {0, 2});
  const Value gap = of_column - sh::broadcast_in_dim(values, pairs, {0, 1});
  // Values nearer to each other than their errors make a cluster, whose vectors stay as they are.
  const Value mixed = choose(differs(real_part(one), 0.0), constant_like(s, 0), s);
  const Value errors = 2.0 * (frobenius(mixed) + frobenius(a) * frobenius(off));
  const Value apart = sh::abs(gap) > sh::broadcast_in_dim(errors, pairs, {0});
  const auto typed = [&](Value real) { return sh::convert(real, a.dtype()); };
  const Value step =
      choose(apart, (s + typed(of_column) * off) / typed(choose(apart, gap, 1.0)), off * 0.5);
  return {values, x + matrix_product(x, step)};
}

Values eigh(Call& call) {
  const Value a = matrix_argument(call, "A");
  const bool upper = call.string("UPLO", "L") == "U" || call.string("UPLO", "L") == "u";
  const Dims batch = batch_dims(a);
  const int64_t n = rows(a);
  const bool wide = a.dtype() == ElementType::kF64 || a.dtype() == ElementType::kC128;
  const ElementType real = wide ? ElementType::kF64 : ElementType::kF32;
  const TensorType values{real, with_batch(batch, {n})};
  const bool vectors = call.boolean("compute_v", true);
  const Value none = number_of(call.builder(), TensorType{a.dtype(), {0}}, 0);
  if (a.numel() == 0) return {number_of(call.builder(), values, 0), vectors ? a : none};
  if (n > kLargest) throw Unsupported("_linalg_eigh: a large matrix");
  // Lower triangle, ascending order, sweeps, accuracy.
  const char* const config = wide ? "1,1,40,1e-15" : "1,1,20,1e-7";
  const Value whole = flat_batch(hermitian(a, upper));
  const int64_t count = whole.dim(0);
  const Values out =
      sh::custom_call(call.builder(), "Eigh", {whole}, {whole.type(), {real, {count, n}}}, config,
                      /*api_version=*/1);
  const Eigen e = refined(whole, out[0]);
  // Refined values may have left their order by a rounding error.
  const Value sorted = sorted_along(e.values, 1, /*descending=*/false).values;
  return {sh::reshape(sorted, values.dims), vectors ? sh::reshape(e.vectors, a.dims()) : none};
}

}  // namespace

void register_eigen(Registry& r) { r.add("aten::_linalg_eigh", eigh); }

}  // namespace torch_tpu::lowering
