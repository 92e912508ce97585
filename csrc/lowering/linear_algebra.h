// Batches of matrices, and the parts of the linear algebra family.
#pragma once

#include "lowering/call.h"
#include "lowering/registry.h"

namespace torch_tpu::lowering {

inline int64_t rows(Value a) { return a.dim(a.rank() - 2); }
inline int64_t columns(Value a) { return a.dim(a.rank() - 1); }
// The dimensions in front of the matrix ones.
Dims batch_dims(Value a);
// The same batch with matrices (or, with one number, vectors) of another shape.
Dims with_batch(const Dims& batch, std::initializer_list<int64_t> shape);

// The argument as a batch of float or complex matrices; Unsupported for other types.
Value matrix_argument(const Call& call, std::string_view name);
Value matrix_transpose(Value a);
// Zero above (below) the main diagonal.
Value lower_triangle(Value a);
Value upper_triangle(Value a);
Value identity_matrices(Builder& b, ElementType dtype, const Dims& batch, int64_t n);
// The whole of a Hermitian matrix of which one triangle is meaningful.
Value hermitian(Value a, bool upper);
// Stretches the batches of two matrices to a common one.
void broadcast_batches(Value& a, Value& b);

Value conjugated(Value a);  // itself, if real
Value adjoint(Value a);
// The batch dimensions made one: [B, m, n].
Value flat_batch(Value a);
// A matrix product, over equal batches.
Value matrix_product(Value a, Value b);

// Householder's reflections in LAPACK's form: R with the reflectors below it, and their factors.
// Each compiler has this built in. Not for empty matrices.
struct Reflectors {
  Value packed, factors;
};
Reflectors reflect(Value a);
// The first `count` columns of the reflectors' product.
Value reflectors_product(Reflectors r, int64_t count);

// Singular values (descending) and vectors of flat batches: a = u diag(s) v^H. `u` is m x m if
// `full` and m x min(m, n) otherwise, v^H the like; neither is there if not `vectors`.
struct Svd {
  Value u, s, vh;
};
Svd singular_values(Value a, bool vectors, bool full);

void register_factorization(Registry&);  // factorization.cc: Cholesky and QR
void register_lu(Registry&);             // lu.cc: LU, solving and inverting with it
void register_ldl(Registry&);            // ldl.cc: of symmetric matrices that are not definite
void register_determinant(Registry&);    // determinant.cc: determinants and solving, with LU
void register_matrix_exp(Registry&);     // matrix_exp.cc
void register_eigen(Registry&);          // eigen.cc: of Hermitian matrices
void register_svd(Registry&);            // svd.cc: and least squares
void register_fft(Registry&);            // fft.cc

}  // namespace torch_tpu::lowering
