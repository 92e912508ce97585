// LU factorization with row pivoting, for the rules that are made of it.
#pragma once

#include "lowering/linear_algebra.h"

namespace torch_tpu::lowering {

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
