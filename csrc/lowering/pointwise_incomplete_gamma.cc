// The regularized incomplete gamma functions P(a, x) and Q(a, x) = 1 - P(a, x).
// Reference: https://dlmf.nist.gov/8.7 and https://dlmf.nist.gov/8.9
#include <limits>

#include "lowering/expression.h"
#include "lowering/pointwise.h"
#include "lowering/promotion.h"

namespace torch_tpu::lowering {

namespace sh = stablehlo;

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kPrecision = 1e-16;
constexpr double kMostTerms = 5000;

Values any_left(Value pending, Value count) {
  const Value any = sh::reduce_or(pending, wrap_dims({}, pending.rank()));
  return {any & (count < kMostTerms)};
}

// sum over n of x^n / (a (a + 1) ... (a + n)): for x up to a + 1.
Value series(Value a, Value x) {
  // State: terms so far, x, a + n, the latest term, the sum.
  const auto running = [](const Values& v) { return any_left(v[3] > v[4] * kPrecision, v[0]); };
  const auto step = [](const Values& v) -> Values {
    const Value next = v[2] + 1.0, term = v[3] * v[1] / next;
    return {v[0] + 1.0, v[1], next, term, v[4] + term};
  };
  const Value none = sh::scalar(a.builder(), a.dtype(), 0.0), first = 1.0 / a;
  return sh::while_({none, x, a, first, first}, running, step)[4];
}

// 1 / (x + 1 - a - 1 (1 - a) / (x + 3 - a - 2 (2 - a) / ...)): for x above a + 1. Evaluated from
// the front, as the product of the ratios of successive convergents.
Value continued_fraction(Value a, Value x) {
  const double tiny = 1e-300;
  // State: i, a, the partial denominator, the two ratios, the value, its latest factor.
  const auto running = [](const Values& v) {
    return any_left(abs(v[6] - 1.0) > kPrecision * 4.0, v[0]);
  };
  const auto step = [](const Values& v) -> Values {
    const Value i = v[0] + 1.0, spread = sh::broadcast_to(i, v[1].dims());
    const Value numerator = spread * (v[1] - spread);
    const Value denominator = v[2] + 2.0;
    const Value d = 1.0 / (numerator * v[4] + denominator);
    const Value c = denominator + numerator / v[3];
    return {i, v[1], denominator, c, d, v[5] * (c * d), c * d};
  };
  const Value none = sh::scalar(a.builder(), a.dtype(), 0.0);
  const Value b = x + 1.0 - a, d = 1.0 / b;
  const Values start{none, a, b, constant_like(a, 1.0 / tiny), d, d, constant_like(a, 0.0)};
  return sh::while_(start, running, step)[5];
}

enum class Part { kLower, kUpper };

// In float64 throughout: x^a exp(-x) / gamma(a) cancels too much in float32.
Value incomplete_gamma(Value a, Value x, Part part) {
  const bool lower = part == Part::kLower;
  const Value valid = (a > 0.0) & (x > 0.0) & (a < kInfinity) & (x < kInfinity);
  const Value by_series = x <= a + 1.0;
  const Value series_a = choose(valid & by_series, a, 1.0);
  const Value series_x = choose(valid & by_series, x, 1.0);
  const Value far = valid & sh::not_(by_series);
  const Value fraction_a = choose(far, a, 1.0), fraction_x = choose(far, x, 3.0);
  const auto weight = [](Value a, Value x) { return exponential(a * log(x) - x - lgamma(a)); };
  const Value p = weight(series_a, series_x) * series(series_a, series_x);
  const Value q = weight(fraction_a, fraction_x) * continued_fraction(fraction_a, fraction_x);
  const Value inside = lower ? choose(by_series, p, 1.0 - q) : choose(by_series, 1.0 - p, q);
  // The edges: everything lies below infinity, nothing below 0.
  const Value all = constant_like(x, lower ? 1.0 : 0.0), nothing = constant_like(x, lower ? 0 : 1);
  const Value undefined = (a < 0.0) | (x < 0.0) | is_nan(a) | is_nan(x) |
                          (equals(a, 0.0) & equals(x, 0.0)) |
                          (equals(a, kInfinity) & equals(x, kInfinity));
  const Value above = equals(a, 0.0) | equals(x, kInfinity);
  const Value edge = choose(above, all, nothing);
  return choose(undefined, kNan, choose(valid, inside, edge));
}

Rule incomplete_gamma_rule(Part part) {
  return [part](Call& call) -> Values {
    const Values v = broadcast_arguments(call, {"self", "other"}, ElementType::kF64);
    return {sh::convert(incomplete_gamma(v[0], v[1], part),
                        to_floating(result_type(call, {"self", "other"})))};
  };
}

}  // namespace

void register_incomplete_gamma(Registry& r) {
  r.add("aten::igamma", incomplete_gamma_rule(Part::kLower));
  r.add("aten::igammac", incomplete_gamma_rule(Part::kUpper));
}

}  // namespace torch_tpu::lowering
