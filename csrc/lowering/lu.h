// LU factorization with row pivoting, and steps of factorizations by rows and columns.
#pragma once

#include "lowering/linear_algebra.h"

namespace torch_tpu::lowering {

// Positions along a dimension of a [B, m] or [B, m, n] tensor, as s32.
Value positions(Builder& b, const Dims& dims, int64_t dim);
// One number for everything, or one per batch entry, in front of all elements.
Value spread_front(Value v, const Dims& dims);
// [B, m, n] at row `row` (0-d, or one per batch entry) -> [B, n]; zeros if there is no such row.
Value row_at(Value a, Value row);
// Swaps entries `step` and `other` (0-d, or one per batch entry) along dimension 1 of [B, m] or
// [B, m, n].
Value swapped(Value a, Value step, Value other);

// The rows of [B, m, n] in the order of `permutation` [B, m].
Value permuted_rows(Value a, Value permutation);

struct Lu {
  Value factors;      // [B, m, n]
  Value pivots;       // [B, min(m, n)] s32, 1-based as in LAPACK
  Value permutation;  // [B, m] s32: row i of the permuted matrix is row permutation[i]
  Value info;         // [B] s32: the first zero on U's diagonal, 1-based, or 0
};

// `a` is [B, m, n].
Lu factorize(Value a, bool pivot);

// Solves A x = b, or A^T x = b, or A^H x = b, given [B, n, n] factors.
Value solve(Value factors, Value permutation, Value b, stablehlo::Transpose transpose);

}  // namespace torch_tpu::lowering
