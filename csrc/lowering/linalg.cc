#include <utility>

#include "lowering/expression.h"
#include "lowering/families.h"
#include "lowering/linear_algebra.h"
#include "lowering/promotion.h"
#include "lowering/reduction.h"

namespace torch_tpu::lowering {

namespace sh = stablehlo;

Dims batch_dims(Value a) { return Dims(a.dims().begin(), a.dims().end() - 2); }

Dims with_batch(const Dims& batch, std::initializer_list<int64_t> shape) {
  Dims dims = batch;
  dims.insert(dims.end(), shape);
  return dims;
}

Value matrix_argument(const Call& call, std::string_view name) {
  const Value a = call.tensor(name);
  const bool wide_float = sh::is_float(a.dtype()) && sh::bit_width(a.dtype()) >= 32;
  if (!wide_float && !sh::is_complex(a.dtype())) {
    throw Unsupported(call.op() + ": matrices of " + std::string(sh::name(a.dtype())));
  }
  if (a.rank() < 2) throw Unsupported(call.op() + ": not a matrix");
  return a;
}

Value matrix_transpose(Value a) {
  Dims order;
  for (int64_t d = 0; d < a.rank(); ++d) order.push_back(d);
  std::swap(order[order.size() - 1], order[order.size() - 2]);
  return sh::transpose(a, order);
}

Value conjugated(Value a) {
  return sh::is_complex(a.dtype()) ? sh::complex(sh::real(a), -sh::imag(a)) : a;
}

Value adjoint(Value a) { return conjugated(matrix_transpose(a)); }

Value flat_batch(Value a) {
  return sh::reshape(a, {sh::product(batch_dims(a)), rows(a), columns(a)});
}

Value matrix_product(Value a, Value b) {
  Dims batch;
  for (int64_t d = 0; d < a.rank() - 2; ++d) batch.push_back(d);
  return sh::dot_general(a, b,
                         {.lhs_batching = batch,
                          .rhs_batching = batch,
                          .lhs_contracting = {a.rank() - 1},
                          .rhs_contracting = {a.rank() - 2}},
                         a.dtype());
}

namespace {

Value keep_where(Value a, sh::Direction row_to_column) {
  const TensorType index{ElementType::kS32, a.dims()};
  const Value row = sh::iota(a.builder(), index, a.rank() - 2);
  const Value column = sh::iota(a.builder(), index, a.rank() - 1);
  return sh::select(sh::compare(row, column, row_to_column), a, constant_like(a, 0));
}

}  // namespace

Value lower_triangle(Value a) { return keep_where(a, sh::Direction::kGe); }
Value upper_triangle(Value a) { return keep_where(a, sh::Direction::kLe); }

Value identity_matrices(Builder& b, ElementType dtype, const Dims& batch, int64_t n) {
  return keep_where(number_of(b, TensorType{dtype, with_batch(batch, {n, n})}, 1),
                    sh::Direction::kEq);
}

Value hermitian(Value a, bool upper) {
  const TensorType index{ElementType::kS32, a.dims()};
  const Value i = sh::iota(a.builder(), index, a.rank() - 2);
  const Value j = sh::iota(a.builder(), index, a.rank() - 1);
  const Value whole = sh::select(upper ? sh::le(i, j) : sh::ge(i, j), a, adjoint(a));
  if (!sh::is_complex(a.dtype())) return whole;
  const Value imaginary = sh::imag(whole);
  return sh::complex(sh::real(whole), choose(equals(i, j), 0.0, imaginary));
}

void broadcast_batches(Value& a, Value& b) {
  const Dims batch = sh::broadcast_shapes({batch_dims(a), batch_dims(b)});
  a = sh::broadcast_to(a, with_batch(batch, {rows(a), columns(a)}));
  b = sh::broadcast_to(b, with_batch(batch, {rows(b), columns(b)}));
}

namespace {

Values solve_triangular(Call& call) {
  Value a = matrix_argument(call, "self"), b = matrix_argument(call, "B");
  broadcast_batches(a, b);
  if (b.numel() == 0) return {b};
  return {sh::triangular_solve(a, b, call.boolean("left", true), !call.boolean("upper"),
                               call.boolean("unitriangular"), sh::Transpose::kNone)};
}

// The older interface: A x = b, giving back A as well.
Values triangular_solve(Call& call) {
  Value a = matrix_argument(call, "A"), b = matrix_argument(call, "self");
  broadcast_batches(a, b);
  if (b.numel() == 0) return {b, a};
  const auto transpose =
      call.boolean("transpose") ? sh::Transpose::kTranspose : sh::Transpose::kNone;
  return {sh::triangular_solve(a, b, true, !call.boolean("upper", true),
                               call.boolean("unitriangular"), transpose),
          a};
}

Values cross(Call& call) {
  const ElementType dtype = result_type(call, {"self", "other"});
  const Values xs = broadcast_arguments(call, {"self", "other"}, dtype);
  const int64_t dim = wrap_dim(call.integer_or("dim", -1), xs[0].rank());
  if (xs[0].rank() == 0 || xs[0].dim(dim) != 3) throw Unsupported("linalg_cross: not 3 entries");
  const Value a = convert_halves(xs[0]), b = convert_halves(xs[1]);
  const auto part = [&](Value x, int64_t i) { return sh::slice_dim(x, dim, i, i + 1); };
  Values entries;
  for (int64_t i = 0; i < 3; ++i) {
    const int64_t j = (i + 1) % 3, k = (i + 2) % 3;
    entries.push_back(part(a, j) * part(b, k) - part(a, k) * part(b, j));
  }
  return {sh::concatenate(entries, dim)};
}

}  // namespace

void register_linalg(Registry& r) {
  r.add("aten::linalg_solve_triangular", solve_triangular);
  r.add("aten::triangular_solve", triangular_solve);
  r.add("aten::linalg_cross", cross);
  register_factorization(r);
  register_lu(r);
  register_ldl(r);
  register_determinant(r);
  register_matrix_exp(r);
  register_eigen(r);
  register_svd(r);
  register_fft(r);
}

}  // namespace torch_tpu::lowering
