// LDL factorization of symmetric and Hermitian matrices with Bunch and Kaufman's pivoting, in
// LAPACK's form: D's blocks of one or two rows, L's columns below them, and the swaps.
//
// J. Bunch and L. Kaufman, "Some stable methods for calculating inertia and solving symmetric
// linear systems", 1977.
#include <cmath>

#include "lowering/expression.h"
#include "lowering/lu.h"
#include "lowering/reduction.h"

namespace torch_tpu::lowering {

namespace sh = stablehlo;

namespace {

// With a matrix's transpose or adjoint, as the factorization is of the one or the other kind.
struct Kind {
  bool hermitian = false;

  Value turned(Value v) const { return hermitian ? conjugated(v) : v; }
  Value diagonal(Value v) const {
    return hermitian && sh::is_complex(v.dtype()) ? sh::convert(sh::real(v), v.dtype()) : v;
  }
};

// |re| + |im|, as LAPACK compares.
Value magnitude(Value v) {
  return sh::is_complex(v.dtype()) ? sh::abs(sh::real(v)) + sh::abs(sh::imag(v)) : sh::abs(v);
}

// [B, n] at one place per batch entry -> [B].
Value entry_at(Value v, Value place) {
  const Value here = sh::eq(positions(v.builder(), v.dims(), 1), spread_front(place, v.dims()));
  return sum_over(choose(here, v, 0.0), {1});
}

Value column_at(Value a, Value column) { return row_at(matrix_transpose(a), column); }

// [B, n] x [B, m] -> [B, n, m]
Value outer(Value a, Value b) {
  const Dims dims{a.dim(0), a.dim(1), b.dim(1)};
  return spread(a, dims, {2}) * spread(b, dims, {1});
}

// Entries behind `place`, zeros elsewhere.
Value behind(Value v, Value place) {
  const Value later = sh::gt(positions(v.builder(), v.dims(), 1), spread_front(place, v.dims()));
  return choose(later, v, 0.0);
}

Value with_entry(Value v, Value place, Value entry) {
  const Value here = sh::eq(positions(v.builder(), v.dims(), 1), spread_front(place, v.dims()));
  return sh::select(here, spread_front(entry, v.dims()), v);
}

Value with_column(Value a, Value place, Value column) {
  const Value here = sh::eq(positions(a.builder(), a.dims(), 2), spread_front(place, a.dims()));
  return sh::select(here, spread(column, a.dims(), {2}), a);
}

struct Pivot {
  Value other;     // [B]: the row that changes places with the block's last one
  Value two;       // [B]: whether the block has two rows
  Value singular;  // [B]: whether the column is zero
};

Pivot pivot(Value a, Value step, Value open) {
  const double alpha = (1 + std::sqrt(17.0)) / 8;
  Builder& b = a.builder();
  const Value column = column_at(a, step);
  const Value place = positions(b, column.dims(), 1);
  const auto at = [&](Value v) { return spread_front(v, column.dims()); };
  const auto largest = [&](Value sizes, Value among) {
    return max_over(choose(among, sizes, 0.0), {1});
  };
  const Value sizes = magnitude(column), below = place > at(step);
  const Value diagonal = entry_at(sizes, step), column_largest = largest(sizes, below);
  const Value candidates = choose(below, sizes, -1.0);
  const Value row =
      sh::convert(first_index_of(candidates, max_over(candidates, {1}), 1), ElementType::kS32);
  const Value row_sizes = magnitude(column_at(a, row));
  const Value row_largest = largest(row_sizes, (place >= at(step)) & differs(place, at(row)));
  const Value row_diagonal = entry_at(row_sizes, row);

  const Value singular = equals(sh::maximum(diagonal, column_largest), 0.0) | is_nan(diagonal);
  const Value keep = sh::not_(open) | singular | (diagonal >= column_largest * alpha) |
                     (diagonal >= column_largest * alpha * (column_largest / row_largest));
  const Value two = sh::not_(keep) & (row_diagonal < row_largest * alpha);
  return {sh::select(keep, step, row), two, singular};
}

// The columns of L for a block of two: x D^-1.
struct Columns {
  Value first, second;
};

Columns by_inverse_block(Value x, Value y, Value a, Value b, Value c, const Kind& kind) {
  const Value scale = kind.hermitian ? sh::convert(sh::abs(b), b.dtype()) : b;
  const Value p = c / scale, q = a / scale, u = b / scale;
  const Value t = 1.0 / ((p * q - u * kind.turned(u)) * scale);
  const auto at = [&](Value v) { return spread_front(v, x.dims()); };
  return {at(t) * (at(p) * x - at(u) * y), at(t) * (at(q) * y - at(kind.turned(u)) * x)};
}

Values factorize_ldl(Value a, const Kind& kind) {
  Builder& b = a.builder();
  const int64_t batch = a.dim(0), n = a.dim(1);
  const TensorType index{ElementType::kS32, {batch}};
  const auto last = [&](Value step) { return constant_like(step, static_cast<double>(n)); };
  const auto condition = [&](const Values& v) -> Values {
    return {any_over(v[0] < last(v[0]), {0})};
  };
  const auto body = [&](const Values& v) -> Values {
    const Value step = v[0], open = step < last(step);
    const Pivot p = pivot(v[1], step, open);
    const Value next = step + 1.0, end = sh::select(p.two, next, step);
    const auto exchange = [&](Value m) { return matrix_transpose(swapped(m, end, p.other)); };
    const Value x = exchange(exchange(v[1]));
    const Value column = column_at(x, step), column2 = column_at(x, next);
    const Value diagonal = kind.diagonal(entry_at(column, step));
    const Value corner = entry_at(column, next);
    const Value diagonal2 = kind.diagonal(entry_at(column2, next));

    const Value rest = behind(column, end), rest2 = behind(column2, end);
    const Value divisor = choose(p.singular, 1.0, diagonal);
    const Value one = rest / spread_front(divisor, rest.dims());
    const Columns two =
        by_inverse_block(rest, rest2, diagonal, choose(p.two, corner, 1.0), diagonal2, kind);
    const auto for_two = [&](Value on_true, Value on_false) {
      return sh::select(spread_front(p.two, on_true.dims()), on_true, on_false);
    };
    const Value update =
        for_two(outer(rest, kind.turned(two.first)) + outer(rest2, kind.turned(two.second)),
                outer(one, kind.turned(rest)));
    const Value skip = spread_front(p.singular | sh::not_(open), x.dims());
    const Value updated = sh::select(skip, x, x - update);

    Value first = with_entry(for_two(two.first, one), step, diagonal);
    first = for_two(with_entry(first, next, corner), first);
    const Value second = with_entry(two.second, next, diagonal2);
    Value out = with_column(v[2], step, first);
    out = for_two(with_column(out, next, second), out);
    const Value number = p.other + 1.0;
    Value swaps = with_entry(v[3], step, sh::select(p.two, -number, number));
    swaps = for_two(with_entry(swaps, next, -number), swaps);
    const Value failed = open & p.singular & equals(v[4], 0.0);
    return {end + 1.0, updated, out, swaps, sh::select(failed, next, v[4])};
  };
  return sh::while_(
      {number_of(b, index, 0), a, number_of(b, a.type(), 0),
       number_of(b, TensorType{ElementType::kS32, {batch, n}}, 0), number_of(b, index, 0)},
      condition, body);
}

Values ldl_factor(Call& call) {
  if (call.boolean("check_errors")) throw Unsupported("linalg_ldl_factor_ex: check_errors");
  const Value self = matrix_argument(call, "self");
  Builder& b = call.builder();
  const Kind kind{call.boolean("hermitian") && sh::is_complex(self.dtype())};
  const Dims batch = batch_dims(self), swaps = with_batch(batch, {rows(self)});
  if (self.numel() == 0) {
    return {self, number_of(b, TensorType{ElementType::kS32, swaps}, 0),
            number_of(b, TensorType{ElementType::kS32, batch}, 0)};
  }
  const Value a = flat_batch(self);
  const Value below = lower_triangle(a);
  const TensorType index{ElementType::kS32, a.dims()};
  const Value on_diagonal = sh::eq(sh::iota(b, index, 1), sh::iota(b, index, 2));
  const Value mirrored = kind.turned(matrix_transpose(below));
  const Value whole =
      sh::select(on_diagonal, kind.diagonal(a), below + choose(on_diagonal, 0.0, mirrored));
  const Values out = factorize_ldl(whole, kind);
  return {lower_triangle(sh::reshape(out[2], self.dims())), sh::reshape(out[3], swaps),
          sh::reshape(out[4], batch)};
}

// Row `place` of [B, n, r], one per batch entry, replaced by [B, r].
Value with_row(Value x, Value place, Value row) {
  const Value here = sh::eq(positions(x.builder(), x.dims(), 1), spread_front(place, x.dims()));
  return sh::select(here, spread(row, x.dims(), {1}), x);
}

Value where_rows(Value pred, Value on_true, Value on_false) {
  return sh::select(spread_front(pred, on_true.dims()), on_true, on_false);
}

// x with L y = x solved for y block by block, and D z = y for z.
Value solve_forward(Value factors, Value swaps, Value x, const Kind& kind) {
  const double n = static_cast<double>(rows(factors));
  const auto condition = [&](const Values& v) -> Values { return {any_over(v[0] < n, {0})}; };
  const auto body = [&](const Values& v) -> Values {
    const Value step = v[0], next = step + 1.0;
    const Value swap = entry_at(swaps, step), two = swap < 0.0;
    const Value end = sh::select(two, next, step);
    const Value open = step < n;
    const Value other = sh::select(open, sh::abs(swap) - 1.0, end);
    Value y = swapped(v[1], end, other);
    const Value column = column_at(factors, step), column2 = column_at(factors, next);
    const Value r = row_at(y, step), s = row_at(y, next);
    y = y - outer(behind(column, end), r) -
        outer(behind(where_rows(two, column2, constant_like(column2, 0)), end), s);
    const auto at = [&](Value e) { return spread_front(e, r.dims()); };
    const Value a = kind.diagonal(entry_at(column, step)), b = entry_at(column, next);
    const Value c = kind.diagonal(entry_at(column2, next));
    const Value single = r / at(choose(open, a, 1.0));
    // D z = (r, s) is z^T D^T = (r, s)^T.
    const Columns z = by_inverse_block(r, s, a, kind.turned(choose(two, b, 1.0)), c, kind);
    y = with_row(y, step, where_rows(two, z.first, single));
    y = where_rows(two, with_row(y, next, z.second), y);
    return {end + 1.0, y};
  };
  const TensorType index{ElementType::kS32, {x.dim(0)}};
  return sh::while_({number_of(x.builder(), index, 0), x}, condition, body)[1];
}

// L^T y = x, or L^H y = x, from the last block to the first.
Value solve_backward(Value factors, Value swaps, Value x, const Kind& kind) {
  const auto condition = [](const Values& v) -> Values { return {any_over(v[0] >= 0.0, {0})}; };
  const auto body = [&](const Values& v) -> Values {
    const Value step = v[0], before = step - 1.0;
    const Value swap = entry_at(swaps, step), two = swap < 0.0, open = step >= 0.0;
    const Value y = v[1];
    const auto reduced = [&](Value row) {
      const Value l = kind.turned(behind(column_at(factors, row), step));
      return row_at(y, row) - sum_over(spread(l, y.dims(), {2}) * y, {1});
    };
    Value out = with_row(y, step, reduced(step));
    out = where_rows(two, with_row(out, before, reduced(before)), out);
    const Value other = sh::select(open, sh::abs(swap) - 1.0, step);
    return {sh::select(two, before, step) - 1.0, swapped(out, step, other)};
  };
  const TensorType index{ElementType::kS32, {x.dim(0)}};
  const double last = static_cast<double>(rows(factors) - 1);
  return sh::while_({number_of(x.builder(), index, last), x}, condition, body)[1];
}

Values ldl_solve(Call& call) {
  Value factors = matrix_argument(call, "LD"), b = matrix_argument(call, "B");
  const Kind kind{call.boolean("hermitian") && sh::is_complex(factors.dtype())};
  const int64_t n = rows(factors);
  const Dims batch = sh::broadcast_shapes({batch_dims(factors), batch_dims(b)});
  const Value swaps = sh::broadcast_to(sh::convert(call.tensor("pivots"), ElementType::kS32),
                                       with_batch(batch, {n}));
  broadcast_batches(factors, b);
  if (b.numel() == 0) return {b};
  const Value flat_swaps = sh::reshape(swaps, {sh::product(batch), n});
  const Value flat = flat_batch(factors);
  const Value y = solve_forward(flat, flat_swaps, flat_batch(b), kind);
  return {sh::reshape(solve_backward(flat, flat_swaps, y, kind), b.dims())};
}

}  // namespace

void register_ldl(Registry& r) {
  r.add("aten::linalg_ldl_factor_ex", ldl_factor);
  r.add("aten::linalg_ldl_solve", ldl_solve);
}

}  // namespace torch_tpu::lowering
