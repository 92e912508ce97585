// Singular values by one-sided Jacobi rotations, and least squares with them.
#include <algorithm>
#include <cmath>
#include <limits>

#include "lowering/expression.h"
#include "lowering/linear_algebra.h"
#include "lowering/lu.h"
#include "lowering/reduction.h"
#include "lowering/sorting.h"

namespace torch_tpu::lowering {

namespace sh = stablehlo;

namespace {

// The method's work grows faster than that of the CPU's library.
constexpr int64_t kLargest = 256;
constexpr int kMostSweeps = 30;  // a bound: about ten are enough

bool is_wide(ElementType type) { return type == ElementType::kF64 || type == ElementType::kC128; }

double resolution(ElementType type) {
  return is_wide(type) ? std::numeric_limits<double>::epsilon()
                       : std::numeric_limits<float>::epsilon();
}

Value real_part(Value a) { return sh::is_complex(a.dtype()) ? sh::real(a) : a; }

Value of_type(Value real, ElementType type) { return sh::convert(real, type); }

// Per row of [B, k, w], one number in front of all entries.
Value along_rows(Value v, Value like) { return sh::broadcast_in_dim(v, like.dims(), {0, 1}); }

Value squared_norms(Value rows_of) {
  return sum_over(real_part(rows_of * conjugated(rows_of)), {2});
}

// The columns of A, and with each the combination of A's columns that it has become: rows of
// [B, n, m + n], in two halves whose rows are rotated pair by pair.
struct Halves {
  Value top, bottom;
};

// One rotation of each pair, after which its columns are orthogonal. Also the largest cosine
// between two columns that was met.
struct Rotated {
  Halves halves;
  Value cosine;
};

Rotated rotated(const Halves& h, int64_t m, Value negligible) {
  const ElementType type = h.top.dtype();
  const Value p = sh::slice_dim(h.top, 2, 0, m), q = sh::slice_dim(h.bottom, 2, 0, m);
  const Value alpha = squared_norms(p), beta = squared_norms(q);
  const Value inner = sum_over(conjugated(p) * q, {2});
  const Value size = sh::abs(inner);
  const Value scale = sh::sqrt(alpha) * sh::sqrt(beta);
  const Value least = sh::broadcast_in_dim(negligible, alpha.dims(), {0});
  const Value counts = (size > 0.0) & (alpha > least) & (beta > least);
  const Value cosine = choose(counts, size / choose(counts, scale, 1.0), 0.0);
  const Value rotate = cosine > resolution(type) / 4;

  const Value divisor = choose(rotate, size, 1.0);
  const Value zeta = (beta - alpha) / (2.0 * divisor);
  const Value direction = choose(zeta < 0.0, constant_like(zeta, -1), constant_like(zeta, 1));
  const Value t = direction / (sh::abs(zeta) + sh::sqrt(1.0 + zeta * zeta));
  const Value c = choose(rotate, sh::rsqrt(1.0 + t * t), 1.0);
  const Value s = choose(rotate, t * c, 0.0);
  const Value phase = conjugated(inner) / of_type(divisor, type);
  const Value turn = choose(rotate, phase, 1.0);
  const Value cosines = along_rows(of_type(c, type), h.top);
  const Value sines = along_rows(of_type(s, type), h.top);
  const Value turned = h.bottom * along_rows(turn, h.bottom);
  return {{cosines * h.top - sines * turned, sines * h.top + cosines * turned},
          max_over(max_over(cosine, {1}), {0})};
}

// The next round of a tournament in which every row meets every other one.
Halves next_round(const Halves& h) {
  const int64_t half = h.top.dim(1);
  if (half == 1) return h;
  const auto part = [&](Value v, int64_t from, int64_t to) {
    return sh::slice_dim(v, 1, from, to);
  };
  return {sh::concatenate({part(h.top, 0, 1), part(h.bottom, 0, 1), part(h.top, 1, half - 1)}, 1),
          sh::concatenate({part(h.bottom, 1, half), part(h.top, half - 1, half)}, 1)};
}

// Rows [B, n, w] of which the first m entries have become orthogonal.
Value orthogonalized(Value x, int64_t m) {
  Builder& b = x.builder();
  const int64_t n = x.dim(1), half = (n + 1) / 2, rounds = 2 * half - 1;
  const ElementType real = is_wide(x.dtype()) ? ElementType::kF64 : ElementType::kF32;
  if (n % 2 == 1) {
    x = sh::pad(x, number_of(b, TensorType{x.dtype(), {}}, 0), {0, 0, 0}, {0, 1, 0});
  }
  // Columns this small, next to the largest one, are noise.
  const Value largest = max_over(squared_norms(sh::slice_dim(x, 2, 0, m)), {1});
  const Value negligible = largest * (resolution(x.dtype()) * resolution(x.dtype()));

  const TensorType counter{ElementType::kS32, {}};
  const Value zero = number_of(b, counter, 0);
  const double near = resolution(x.dtype()) * std::max(4.0, std::sqrt(static_cast<double>(m)));
  const auto more_sweeps = [&](const Values& v) -> Values {
    return {(v[0] < static_cast<double>(kMostSweeps)) & (v[1] > near)};
  };
  const auto sweep = [&](const Values& v) -> Values {
    const auto more_rounds = [&](const Values& w) -> Values {
      return {w[0] < static_cast<double>(rounds)};
    };
    const auto round = [&](const Values& w) -> Values {
      const Rotated r = rotated({w[2], w[3]}, m, negligible);
      const Halves next = next_round(r.halves);
      return {w[0] + 1.0, sh::maximum(w[1], r.cosine), next.top, next.bottom};
    };
    const Values w =
        sh::while_({zero, number_of(b, TensorType{real, {}}, 0), v[2], v[3]}, more_rounds, round);
    return {v[0] + 1.0, w[1], w[2], w[3]};
  };
  const Values out = sh::while_({zero, number_of(b, TensorType{real, {}}, 1),
                                 sh::slice_dim(x, 1, 0, half), sh::slice_dim(x, 1, half, 2 * half)},
                                more_sweeps, sweep);
  // After a whole tournament all are where they were, the added one last.
  return sh::slice_dim(sh::concatenate({out[2], out[3]}, 1), 1, 0, n);
}

Value diagonal_of(Value a) {
  const int64_t n = std::min(rows(a), columns(a));
  const Value square = sh::slice_dim(sh::slice_dim(a, 1, 0, n), 2, 0, n);
  const TensorType index{ElementType::kS32, square.dims()};
  const Value here = sh::eq(sh::iota(a.builder(), index, 1), sh::iota(a.builder(), index, 2));
  return sum_over(choose(here, square, 0.0), {2});
}

// Scales columns of [B, m, k] by [B, n], n <= k; the others stay.
Value scaled_columns(Value a, Value by) {
  const int64_t n = by.dim(1), k = a.dim(2);
  if (k > n) {
    by = sh::pad(by, number_of(a.builder(), TensorType{by.dtype(), {}}, 1), {0, 0}, {0, k - n});
  }
  return a * sh::broadcast_in_dim(by, a.dims(), {0, 2});
}

// m >= n
Svd tall_singular_values(Value a, bool vectors, bool full) {
  Builder& b = a.builder();
  const ElementType type = a.dtype();
  const int64_t batch = a.dim(0), m = a.dim(1), n = a.dim(2);
  // In range for squares.
  const Value magnitude = max_over(max_over(sh::abs(a), {1}), {1});
  const Value unit = choose(magnitude > 0.0, magnitude, 1.0);
  Value x = matrix_transpose(a / sh::broadcast_in_dim(of_type(unit, type), a.dims(), {0}));
  if (vectors) x = sh::concatenate({x, identity_matrices(b, type, {batch}, n)}, 2);
  x = orthogonalized(x, m);
  const Sorted norms =
      sorted_along(sh::sqrt(squared_norms(sh::slice_dim(x, 2, 0, m))), 1, /*descending=*/true);
  const Value units = sh::broadcast_in_dim(unit, norms.values.dims(), {0});
  if (!vectors) return {{}, norms.values * units, {}};

  x = permuted_rows(x, norms.indices);
  const Value product = matrix_transpose(sh::slice_dim(x, 2, 0, m));  // A V = U diag(s)
  const Value vh = conjugated(sh::slice_dim(x, 2, m, m + n));
  // Its QR decomposition has the same columns up to a phase, and completes those of a norm of zero.
  const Reflectors r = reflect(product);
  const Value entries = diagonal_of(r.packed), sizes = sh::abs(entries);
  const Value nonzero = sizes > 0.0;
  const Value phases = choose(nonzero, entries / of_type(choose(nonzero, sizes, 1.0), type), 1.0);
  return {scaled_columns(reflectors_product(r, full ? m : n), phases), norms.values * units, vh};
}

}  // namespace

Svd singular_values(Value a, bool vectors, bool full) {
  if (rows(a) >= columns(a)) return tall_singular_values(a, vectors, full);
  const Svd other = tall_singular_values(adjoint(a), vectors, full);
  if (!vectors) return other;
  return {adjoint(other.vh), other.s, adjoint(other.u)};
}

namespace {

Values svd(Call& call) {
  const Value a = matrix_argument(call, "A");
  Builder& b = call.builder();
  const bool vectors = call.boolean("compute_uv", true), full = call.boolean("full_matrices");
  const int64_t m = rows(a), n = columns(a), least = std::min(m, n);
  const Dims batch = batch_dims(a);
  const ElementType real = is_wide(a.dtype()) ? ElementType::kF64 : ElementType::kF32;
  const Value none = number_of(b, TensorType{a.dtype(), {0}}, 0);
  const Dims u{with_batch(batch, {m, full ? m : least})}, s{with_batch(batch, {least})},
      vh{with_batch(batch, {full ? n : least, n})};
  if (a.numel() == 0) {
    const auto leading = [&](const Dims& dims) {
      const int64_t p = dims[dims.size() - 2], q = dims.back();
      const Value one = identity_matrices(b, a.dtype(), batch, std::max(p, q));
      return sh::slice_dim(sh::slice_dim(one, one.rank() - 2, 0, p), one.rank() - 1, 0, q);
    };
    return {vectors ? leading(u) : none, number_of(b, TensorType{real, s}, 0),
            vectors ? leading(vh) : none};
  }
  if (least > kLargest) throw Unsupported("_linalg_svd: a large matrix");
  const Svd out = singular_values(flat_batch(a), vectors, full);
  return {vectors ? sh::reshape(out.u, u) : none, sh::reshape(out.s, s),
          vectors ? sh::reshape(out.vh, vh) : none};
}

// The solution of least norm, whatever the driver: what the drivers differ in is their cost.
Values lstsq(Call& call) {
  const Value a = matrix_argument(call, "self");
  Value b = call.tensor("b");
  const std::string driver = call.string("driver", "gelsy");
  const int64_t m = rows(a), n = columns(a), least = std::min(m, n);
  const bool full_rank = driver == "gels", with_values = driver == "gelsd" || driver == "gelss";
  if (b.dtype() != a.dtype() || a.numel() == 0 || b.numel() == 0) {
    throw Unsupported("linalg_lstsq: no elements, or two dtypes");
  }
  if (with_values && m > n) throw Unsupported("linalg_lstsq: residuals if the rank is full");
  if (!full_rank && driver != "gelsy" && !with_values) throw Unsupported("linalg_lstsq: driver");
  if (least > kLargest) throw Unsupported("linalg_lstsq: a large matrix");
  const bool vector =
      b.rank() == a.rank() - 1 && b.dims() == Dims(a.dims().begin(), a.dims().end() - 1);
  if (vector) b = sh::expand_dim(b, b.rank());
  if (b.rank() != a.rank() || rows(b) != m) throw Unsupported("linalg_lstsq: shapes");
  const Dims batch = sh::broadcast_shapes({batch_dims(a), batch_dims(b)});
  if (batch != batch_dims(a)) throw Unsupported("linalg_lstsq: a wider batch of right sides");
  b = sh::broadcast_to(b, with_batch(batch, {m, columns(b)}));

  const Svd svd = singular_values(flat_batch(a), true, false);
  const Value s = svd.s, right = flat_batch(b);
  const Value largest = sh::broadcast_in_dim(max_over(s, {1}), s.dims(), {0});
  const double otherwise = resolution(a.dtype()) * static_cast<double>(std::max(m, n));
  const Value ratio = call.has("rcond")
                          ? sh::broadcast_to(call.number("rcond", s.dtype()), s.dims())
                          : constant_like(s, full_rank ? 0.0 : otherwise);
  const Value counts = full_rank ? s > 0.0 : s > ratio * largest;
  const Value inverse = choose(counts, 1.0 / choose(counts, s, 1.0), 0.0);
  const Value projected = matrix_product(adjoint(svd.u), right);
  const Value weight = sh::broadcast_in_dim(of_type(inverse, a.dtype()), projected.dims(), {0, 1});
  const Value x = matrix_product(adjoint(svd.vh), weight * projected);

  Builder& builder = call.builder();
  const auto nothing = [&](ElementType type) {
    return number_of(builder, TensorType{type, {0}}, 0);
  };
  Value residuals = nothing(s.dtype());
  if (full_rank && m > n) {
    const Value rest = right - matrix_product(flat_batch(a), x);
    residuals = sh::reshape(sum_over(real_part(rest * conjugated(rest)), {1}),
                            with_batch(batch, {columns(b)}));
  }
  Dims solution = with_batch(batch, {n, columns(b)});
  if (vector) solution.pop_back();
  const Value rank = sum_over(sh::convert(counts, ElementType::kS64), {1});
  return {sh::reshape(x, solution), residuals,
          full_rank ? nothing(ElementType::kS64) : sh::reshape(rank, batch),
          with_values ? sh::reshape(s, with_batch(batch, {least})) : nothing(s.dtype())};
}

}  // namespace

void register_svd(Registry& r) {
  r.add("aten::_linalg_svd", svd);
  r.add("aten::linalg_lstsq", lstsq);
}

}  // namespace torch_tpu::lowering
