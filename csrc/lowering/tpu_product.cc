#include "lowering/tpu_product.h"

#include <algorithm>

#include "lowering/platform.h"

namespace torch_tpu::lowering {

using namespace stablehlo;

namespace {

using Rearrangement = Builder::Rearrangement;

// What `matrices` is a reshape of, if its last two dimensions are the same and there are more
// before them.
Value apart(Value matrices) {
  const Rearrangement* const made = matrices.builder().rearrangement(matrices);
  if (!made || !made->permutation.empty() || made->operand.rank() <= 3) return Value();
  const Dims &from = made->operand.dims(), &to = matrices.dims();
  return std::equal(to.end() - 2, to.end(), from.end() - 2) ? made->operand : Value();
}

// A side of a batch of products, with its batch apart.
struct Side {
  Value value;
  int64_t contracting = 0;
};

Side side_apart(Value matrices, int64_t contracting) {
  const Rearrangement* const made = matrices.builder().rearrangement(matrices);
  if (made && made->permutation == Dims{0, 2, 1}) {
    matrices = made->operand;
    contracting = 3 - contracting;
  }
  const Value value = apart(matrices);
  return {value, value ? value.rank() - 3 + contracting : 0};
}

Dims leading(Value value) { return Dims(value.dims().begin(), value.dims().end() - 2); }

DotOperands batch_apart(const DotOperands& p) {
  const Side l = side_apart(p.lhs, p.dims.lhs_contracting[0]);
  const Side r = side_apart(p.rhs, p.dims.rhs_contracting[0]);
  if (!l.value || !r.value || leading(l.value) != leading(r.value)) return {};
  DotDims dims{{}, {}, {l.contracting}, {r.contracting}};
  for (int64_t d = 0; d + 2 < l.value.rank(); ++d) dims.lhs_batching.push_back(d);
  dims.rhs_batching = dims.lhs_batching;
  return {l.value, r.value, dims};
}

// The matrix with its rows apart, and its columns joined where those were apart too.
Value matrix_apart(Value matrix) {
  const Rearrangement* const made = matrix.builder().rearrangement(matrix);
  if (!made || !made->permutation.empty()) return Value();
  Dims dims = made->operand.dims();
  int64_t columns = 1;
  while (!dims.empty() && columns < matrix.dim(1)) {
    columns *= dims.back();
    dims.pop_back();
  }
  if (columns != matrix.dim(1) || dims.size() < 2) return Value();
  dims.push_back(columns);
  return reshape(made->operand, dims);
}

DotOperands rows_apart(const DotOperands& p) {
  const Value lhs = matrix_apart(p.lhs);
  if (!lhs) return {};
  return {lhs, p.rhs, {{}, {}, {lhs.rank() - 1}, p.dims.rhs_contracting}};
}

// A side of a product of matrices whose rows are contracted, with its rows apart.
Value contracted_rows_apart(Value matrix, int64_t contracting) {
  if (contracting == 1) {
    const Rearrangement* const made = matrix.builder().rearrangement(matrix);
    if (!made || made->permutation != Dims{1, 0}) return Value();
    matrix = made->operand;
  }
  return matrix_apart(matrix);
}

DotOperands contraction_apart(const DotOperands& p) {
  const Value lhs = contracted_rows_apart(p.lhs, p.dims.lhs_contracting[0]);
  const Value rhs = contracted_rows_apart(p.rhs, p.dims.rhs_contracting[0]);
  if (!lhs || !rhs) return {};
  const Dims rows(lhs.dims().begin(), lhs.dims().end() - 1);
  if (rows != Dims(rhs.dims().begin(), rhs.dims().end() - 1)) return {};
  DotDims dims;
  for (int64_t d = 0; d + 1 < lhs.rank(); ++d) dims.lhs_contracting.push_back(d);
  dims.rhs_contracting = dims.lhs_contracting;
  return {lhs, rhs, dims};
}

}  // namespace

DotOperands product_apart(const DotOperands& p) {
  const DotDims& dims = p.dims;
  if (CompilingFor::platform() != Platform::kTpu || dims.lhs_contracting.size() != 1) return {};
  const bool batch = dims.lhs_batching == Dims{0} && dims.rhs_batching == Dims{0};
  if (batch && p.lhs.rank() == 3 && p.rhs.rank() == 3) return batch_apart(p);
  if (!dims.lhs_batching.empty() || p.lhs.rank() != 2 || p.rhs.rank() != 2) return {};
  if (DotOperands apart = contraction_apart(p); apart.lhs) return apart;
  return dims.lhs_contracting[0] == 1 ? rows_apart(p) : DotOperands();
}

}  // namespace torch_tpu::lowering
