#include "lowering/scan.h"

#include <limits>

#include "lowering/expression.h"
#include "lowering/families.h"
#include "lowering/indexing.h"
#include "lowering/pointwise.h"
#include "lowering/promotion.h"
#include "lowering/reduction.h"

namespace torch_tpu::lowering {

namespace sh = stablehlo;

namespace {

using Associative = std::function<Value(Value, Value)>;

// Elements whose running totals are written out one by one. Longer dimensions are cut into
// blocks of this size, and the totals of the blocks are scanned in turn.
constexpr int64_t kBlock = 16;

// `low` and `high` positions of padding along one dimension; negative ones cut.
Value pad_dim(Value value, int64_t dim, Value padding, int64_t low, int64_t high) {
  Dims lows(value.dims().size(), 0), highs(value.dims().size(), 0);
  lows[static_cast<size_t>(dim)] = low;
  highs[static_cast<size_t>(dim)] = high;
  return sh::pad(value, padding, lows, highs);
}

Value scan_block(Value value, int64_t dim, Value identity, const Associative& combine,
                 Combination kind) {
  const int64_t n = value.dim(dim);
  if (kind == Combination::kCompound) {
    // Each step doubles how many elements are in a total.
    for (int64_t reach = 1; reach < n; reach *= 2) {
      value = combine(pad_dim(value, dim, identity, reach, -reach), value);
    }
    return value;
  }
  sh::Window window{.dimensions = Dims(value.dims().size(), 1),
                    .padding_low = Dims(value.dims().size(), 0)};
  window.dimensions[static_cast<size_t>(dim)] = n;
  window.padding_low[static_cast<size_t>(dim)] = n - 1;
  return sh::reduce_window({value}, {identity}, window,
                           [&](const Values& v) { return Values{combine(v[0], v[1])}; })[0];
}

}  // namespace

Value scan_along(Value value, int64_t dim, Value identity, const Associative& combine,
                 Combination kind) {
  const int64_t n = value.dim(dim);
  if (value.numel() == 0 || n == 1) return value;
  if (n <= kBlock) return scan_block(value, dim, identity, combine, kind);

  const int64_t blocks = (n + kBlock - 1) / kBlock;
  const Value padded = pad_dim(value, dim, identity, 0, blocks * kBlock - n);
  Dims split = value.dims();
  split[static_cast<size_t>(dim)] = blocks;
  split.insert(split.begin() + dim + 1, kBlock);
  const Value inner = scan_block(sh::reshape(padded, split), dim + 1, identity, combine, kind);

  const Value totals = sh::squeeze_dim(sh::slice_dim(inner, dim + 1, kBlock - 1, kBlock), dim + 1);
  const Value before =
      pad_dim(scan_along(totals, dim, identity, combine, kind), dim, identity, 1, -1);
  const Value joined = combine(spread(before, split, {dim + 1}), inner);
  return sh::slice_dim(sh::reshape(joined, padded.dims()), dim, 0, n);
}

Value running_sum(Value value, int64_t dim) {
  return scan_along(value, dim, number_of(value.builder(), TensorType{value.dtype(), {}}, 0),
                    [](Value a, Value b) { return sh::add(a, b); });
}

Value running_max(Value value, int64_t dim) {
  return scan_along(value, dim, sh::lowest(value.builder(), TensorType{value.dtype(), {}}),
                    [](Value a, Value b) { return sh::maximum(a, b); });
}

Value running_min(Value value, int64_t dim) {
  return scan_along(value, dim, sh::highest(value.builder(), TensorType{value.dtype(), {}}),
                    [](Value a, Value b) { return sh::minimum(a, b); });
}

namespace {

// log(exp(a) + exp(b)); equal infinities stay what they are.
Value log_add_exp(Value a, Value b) {
  const Value high = sh::maximum(a, b), low = sh::minimum(a, b);
  const Value sum = sh::add(high, sh::log_plus_one(sh::exponential(sh::subtract(low, high))));
  const Value same_infinity = sh::and_(sh::eq(a, b), sh::not_(sh::is_finite(a)));
  return sh::select(same_infinity, a, sum);
}

// exp(x) for x whose real part is infinite: infinite, but for parts that are 0.
Value exponential_of_infinity(Value x) {
  const Value part = sh::imag(x);
  const auto infinite = [](Value direction) {
    return choose(equals(direction, 0.0), direction,
                  direction * std::numeric_limits<double>::infinity());
  };
  return sh::complex(infinite(sh::cosine(part)), infinite(sh::sine(part)));
}

// log(exp(a) + exp(b)) of complex numbers, in the branch of the one with the larger real part, or
// of the later one, b.
Value complex_log_add_exp(Value a, Value b) {
  const Value re_a = sh::real(a), re_b = sh::real(b);
  const Value nan = constant_like(re_a, std::numeric_limits<double>::quiet_NaN());
  const Value unknown = is_nan(re_a) | is_nan(re_b) | is_nan(sh::imag(a)) | is_nan(sh::imag(b));
  const Value second = re_b >= re_a;
  const Value high = sh::select(second, b, a), low = sh::select(second, a, b);
  const Value apart = low - high;
  // Nothing is added, whatever the angle of the smaller one.
  const Value negligible = equals(sh::real(apart), -std::numeric_limits<double>::infinity());
  const Value ratio = sh::select(negligible, constant_like(apart, 0), sh::exponential(apart));
  const Value sum = sh::log_plus_one(ratio) + high;
  const Value both_infinite = equals(re_a, re_b) & sh::not_(sh::is_finite(re_a));
  const Value large = logarithm(exponential_of_infinity(a) + exponential_of_infinity(b));
  const Value limit = sh::select(re_a < 0.0, a, large);
  return sh::select(unknown, sh::complex(nan, nan), sh::select(both_infinite, limit, sum));
}

// Running totals one after the other: where the grouping would choose the branch of a logarithm.
Value scan_in_turn(Value x, int64_t dim, Value identity,
                   const std::function<Value(Value, Value)>& combine) {
  const int64_t n = x.dim(dim);
  if (x.numel() == 0) return x;
  Builder& b = x.builder();
  Dims slice = x.dims();
  slice[static_cast<size_t>(dim)] = 1;
  const TensorType counter{ElementType::kS32, {}};
  const auto at = [&](Value step) {
    Values start(x.dims().size(), number_of(step.builder(), counter, 0));
    start[static_cast<size_t>(dim)] = step;
    return start;
  };
  const auto condition = [&](const Values& v) -> Values { return {v[0] < static_cast<double>(n)}; };
  const auto body = [&](const Values& v) -> Values {
    const Value total = combine(v[1], sh::dynamic_slice(x, at(v[0]), slice));
    return {v[0] + 1.0, total, sh::dynamic_update_slice(v[2], total, at(v[0]))};
  };
  return sh::while_({number_of(b, counter, 0), sh::broadcast_to(identity, slice), x}, condition,
                    body)[2];
}

struct Along {
  Value x;
  int64_t dim;
};

// The argument in the dtype PyTorch accumulates in, with at least one dimension.
Along along(const Call& call) {
  const Value self = call.tensor("self");
  ElementType dtype = self.dtype();
  if (const auto asked = call.dtype("dtype")) {
    dtype = *asked;
  } else if (call.num_outputs() > 0) {
    dtype = call.output().dtype;  // that of `out`, too
  } else if (sh::is_integer(dtype) || sh::is_bool(dtype)) {
    dtype = ElementType::kS64;
  }
  const Value x = convert_halves(sh::convert(at_least_1d(self), dtype));
  return {x, wrap_dim(call.integer("dim"), x.rank())};
}

Value like_self(const Call& call, Value result) {
  return call.tensor("self").rank() == 0 ? sh::reshape(result, {}) : result;
}

Values cumsum(Call& call) {
  const auto [x, dim] = along(call);
  return {like_self(call, running_sum(x, dim))};
}

Values cumprod(Call& call) {
  const auto [x, dim] = along(call);
  const Value one = number_of(call.builder(), TensorType{x.dtype(), {}}, 1);
  return {like_self(call,
                    scan_along(x, dim, one, [](Value a, Value b) { return sh::multiply(a, b); }))};
}

Values logcumsumexp(Call& call) {
  const Value x = convert_halves(at_least_1d(call.tensor("self")));
  const int64_t dim = wrap_dim(call.integer("dim"), x.rank());
  if (!sh::is_float(x.dtype()) && !sh::is_complex(x.dtype())) {
    throw Unsupported("logcumsumexp: not floating point");
  }
  const Value identity = sh::lowest(call.builder(), TensorType{sh::real_type(x.dtype()), {}});
  if (sh::is_complex(x.dtype())) {
    const Value zero = sh::complex(identity, constant_like(identity, 0));
    return {like_self(call, scan_in_turn(x, dim, zero, complex_log_add_exp))};
  }
  return {like_self(call, scan_along(x, dim, identity, log_add_exp, Combination::kCompound))};
}

// Values and the last position each of them was taken from.
template <Value (*running)(Value, int64_t)>
Values running_extreme(Call& call) {
  const Value self = call.tensor("self");
  if (sh::is_complex(self.dtype())) throw Unsupported(call.op() + ": complex numbers");
  const Value x = at_least_1d(self);
  const int64_t dim = wrap_dim(call.integer("dim"), x.rank());
  const Value values = running(x, dim);
  const TensorType index{ElementType::kS32, x.dims()};
  const Value position = sh::iota(call.builder(), index, dim);
  const Value taken = sh::select(sh::or_(sh::eq(x, values), is_nan(x)), position,
                                 sh::splat(call.builder(), index, int64_t{0}));
  const Value indices = sh::convert(running_max(taken, dim), ElementType::kS64);
  return {like_self(call, values), like_self(call, indices)};
}

}  // namespace

void register_scan(Registry& r) {
  r.add("aten::cumsum", cumsum);
  r.add("aten::cumprod", cumprod);
  r.add("aten::logcumsumexp", logcumsumexp);
  r.add("aten::cummax", running_extreme<running_max>);
  r.add("aten::cummin", running_extreme<running_min>);
  r.add("aten::_cummax_helper", running_extreme<running_max>);
  r.add("aten::_cummin_helper", running_extreme<running_min>);
}

}  // namespace torch_tpu::lowering
