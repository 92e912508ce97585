// Error functions, gamma functions and relatives.
#include <cmath>
#include <limits>
#include <numbers>

#include "lowering/expression.h"
#include "lowering/pointwise.h"
#include "lowering/promotion.h"

namespace torch_tpu::lowering {

namespace sh = stablehlo;

namespace {

// hurwitz_zeta for s > 1 and q >= 1.
Value zeta_tail(Value s, Value q) {
  // All terms but the first are nothing, and the series overflows.
  const Value first_only = s > 1000.0;
  return choose(first_only, power(q, -s), sh::zeta(choose(first_only, 2.0, s), q));
}

}  // namespace

Value hurwitz_zeta(Value s, Value q) {
  const double inf = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  // Below zero, the terms up to there are those from -q down to the fraction `below`, of one sign:
  // the difference of two such sums. Terms of like size are taken together, as they may cancel.
  const Value negative = q < 0.0;
  const Value above = choose(negative, q - sh::floor(q), q);
  const Value below = choose(negative, sh::ceil(q) - q, 1.0);
  const Value half = s * 0.5;
  const Value sign =
      choose(negative, choose(equals(half, sh::floor(half)), 1.0, constant_like(q, -1.0)), 0.0);
  const Value near = above <= 1.0;
  const auto signed_ = [&](Value v) { return choose(negative, sign * v, 0.0); };
  const Value first = choose(near, power(above, -s), 0.0) + signed_(power(below, -s));
  const Value rest =
      zeta_tail(s, choose(near, above + 1.0, above)) + signed_(zeta_tail(s, below + 1.0));
  const Value beyond = signed_(zeta_tail(s, choose(negative, 1.0 - q, 1.0)));
  const Value undefined = (s < 1.0) | (negative & differs(s, sh::floor(s)));
  const Value pole = equals(s, 1.0) | (sh::not_(s < 1.0) & (q <= 0.0) & equals(q, sh::floor(q)));
  return choose(pole, inf, choose(undefined, nan, first + (rest - beyond)));
}

namespace {

using Unary = Value (*)(Value);

constexpr double kPi = std::numbers::pi;

// -inf at 0, +inf at -0, where the reflection formula has no value.
Value digamma_with_poles(Value x) {
  const Value pole = -(1.0 / x);
  return choose(equals(x, 0.0), pole, sh::digamma(x));
}

// The second derivative of lgamma, by reflection below one half.
Value trigamma(Value x) {
  const Value reflect = x < 0.5;
  const Value tail = sh::zeta(constant_like(x, 2.0), choose(reflect, 1.0 - x, x));
  const Value s = sine(x * kPi);
  return choose(reflect, (kPi * kPi) / (s * s) - tail, tail);
}

Values polygamma_rule(Call& call) {
  const Value self = call.tensor("self");
  const Value x = sh::convert(self, compute_type(to_floating(self.dtype())));
  const int64_t n = call.integer("n");
  if (n == 0) return {digamma_with_poles(x)};
  if (n == 1) return {trigamma(x)};
  const double order = static_cast<double>(n) + 1.0;
  const double factor = (n % 2 == 0 ? -1.0 : 1.0) * std::tgamma(order);
  return {hurwitz_zeta(constant_like(x, order), x) * factor};
}

// -x ln x.
Value entr(Value x) {
  const Value inside = choose(equals(x, 0.0), 0.0, -x * log(x));
  return choose(x < 0.0, -std::numeric_limits<double>::infinity(), inside);
}

// exp(x^2) erfc(x): the product while both factors are in range, then the continued fraction
// 1 / (x + (1/2) / (x + 1 / (x + (3/2) / ...))), which settles fast for large x.
Value erfcx(Value x) {
  const Value large = x > 5.0;
  const Value near = choose(large, 0.0, x);
  const Value product = exponential(near * near) * sh::erfc(near);
  const Value far = choose(large, x, 5.0);
  Value fraction = far;
  for (int term = 24; term > 0; --term) fraction = far + (0.5 * term) / fraction;
  return choose(large, std::numbers::inv_sqrtpi / fraction, product);
}

// ln of the normal distribution function.
Value log_ndtr(Value x) {
  const Value t = x * (1.0 / std::numbers::sqrt2);
  const Value tail = x < -1.0;
  const Value below = log(0.5 * erfcx(choose(tail, -t, 1.0))) - t * t;
  return choose(tail, below, log_plus_one(-0.5 * sh::erfc(t)));
}

// The inverse of the normal distribution function: in the middle by erfinv, in the tails by
// Newton's method on the logarithm of the distribution, which is nearly a parabola there.
Value ndtri(Value p) {
  const Value upper = p > 0.5;
  const Value q = choose(upper, 1.0 - p, p);
  const Value tail = q < 0.02;
  const Value middle = -std::numbers::sqrt2 * sh::erf_inv(1.0 - 2.0 * q);
  const Value target = log(choose(tail, q, 0.01));
  Value z = -sqrt(-2.0 * target - log(-4.0 * kPi * target));
  for (int i = 0; i < 4; ++i) {
    const Value scaled_tail = erfcx(z * (-1.0 / std::numbers::sqrt2));
    const Value error = log(0.5 * scaled_tail) - 0.5 * z * z - target;
    z = z - error * scaled_tail * std::sqrt(kPi / 2.0);
  }
  const double infinity = std::numeric_limits<double>::infinity();
  const Value lower_half = choose(equals(q, 0.0), -infinity, choose(tail, z, middle));
  const Value result = choose(upper, -lower_half, lower_half);
  return choose((p >= 0.0) & (p <= 1.0), result, std::numeric_limits<double>::quiet_NaN());
}

struct SpecialEntry {
  const char* op;
  Unary function;
};

constexpr SpecialEntry kSpecial[] = {
    {"aten::digamma", digamma_with_poles}, {"aten::special_entr", entr},
    {"aten::special_erfcx", erfcx},        {"aten::special_log_ndtr", log_ndtr},
    {"aten::special_ndtri", ndtri},
};

}  // namespace

void register_special(Registry& r) {
  for (const SpecialEntry& entry : kSpecial) {
    r.add(entry.op, [entry](Call& call) -> Values {
      const Value self = call.tensor("self");
      return {entry.function(sh::convert(self, compute_type(to_floating(self.dtype()))))};
    });
  }
  r.add("aten::polygamma", polygamma_rule);
}

}  // namespace torch_tpu::lowering
