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
// Stretches the batches of two matrices to a common one.
void broadcast_batches(Value& a, Value& b);

void register_factorization(Registry&);  // factorization.cc: Cholesky and QR
void register_lu(Registry&);             // lu.cc: LU, solving and inverting with it
void register_fft(Registry&);            // fft.cc

}  // namespace torch_tpu::lowering
