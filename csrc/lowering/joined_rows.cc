#include "lowering/joined_rows.h"

#include "lowering/platform.h"

namespace torch_tpu::lowering {

Value rows_apart(Value matrix) {
  if (CompilingFor::platform() != Platform::kTpu || matrix.rank() != 2) return matrix;
  const auto* const made = matrix.builder().rearrangement(matrix);
  const bool joined = made && made->permutation.empty() && made->operand.rank() > 2 &&
                      made->operand.dims().back() == matrix.dim(1);
  return joined ? made->operand : matrix;
}

}  // namespace torch_tpu::lowering
