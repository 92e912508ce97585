// Orthogonal polynomials, by their three-term recurrences. The degrees are a tensor: the loop runs
// to the largest, and each element keeps the value of its own.
#include <limits>

#include "lowering/expression.h"
#include "lowering/pointwise.h"
#include "lowering/promotion.h"

namespace torch_tpu::lowering {

namespace sh = stablehlo;

namespace {

// The polynomial of degree 1.
using First = Value (*)(Value x);
// That of degree k + 1 from those of degrees k and k - 1; k as a 0-d value spread over x.
using Next = Value (*)(Value x, Value k, Value current, Value previous);

Value same(Value x) { return x; }
Value twice(Value x) { return 2.0 * x; }
Value twice_less_one(Value x) { return 2.0 * x - 1.0; }
Value twice_plus_one(Value x) { return 2.0 * x + 1.0; }
Value one_less(Value x) { return 1.0 - x; }

Value chebyshev(Value x, Value, Value current, Value previous) {
  return 2.0 * x * current - previous;
}
Value hermite_h(Value x, Value k, Value current, Value previous) {
  return 2.0 * (x * current - k * previous);
}
Value hermite_he(Value x, Value k, Value current, Value previous) {
  return x * current - k * previous;
}
Value laguerre(Value x, Value k, Value current, Value previous) {
  return ((2.0 * k + 1.0 - x) * current - k * previous) / (k + 1.0);
}
Value legendre(Value x, Value k, Value current, Value previous) {
  return ((2.0 * k + 1.0) * x * current - k * previous) / (k + 1.0);
}

struct Polynomial {
  const char* op;
  First first;
  Next next;
  bool shifted = false;     // a function of 2 x - 1
  bool grows_fast = false;  // PyTorch gives NaN above a degree of 128 (float64: 512)
};

constexpr Polynomial kPolynomials[] = {
    {"aten::special_chebyshev_polynomial_t", same, chebyshev},
    {"aten::special_chebyshev_polynomial_u", twice, chebyshev},
    {"aten::special_chebyshev_polynomial_v", twice_less_one, chebyshev},
    {"aten::special_chebyshev_polynomial_w", twice_plus_one, chebyshev},
    {"aten::special_shifted_chebyshev_polynomial_t", same, chebyshev, true},
    {"aten::special_shifted_chebyshev_polynomial_u", twice, chebyshev, true},
    {"aten::special_shifted_chebyshev_polynomial_v", twice_less_one, chebyshev, true},
    {"aten::special_shifted_chebyshev_polynomial_w", twice_plus_one, chebyshev, true},
    {"aten::special_hermite_polynomial_h", twice, hermite_h, false, true},
    {"aten::special_hermite_polynomial_he", same, hermite_he, false, true},
    {"aten::special_laguerre_polynomial_l", one_less, laguerre},
    {"aten::special_legendre_polynomial_p", same, legendre},
};

Value evaluate(const Polynomial& polynomial, Value argument, Value degree) {
  const Value x = polynomial.shifted ? 2.0 * argument - 1.0 : argument;
  const Value limit = constant_like(degree, x.dtype() == ElementType::kF64 ? 512 : 128);
  const Value bounded = polynomial.grows_fast ? minimum(degree, limit) : degree;
  const Value one = constant_like(x, 1.0), k = sh::scalar(x.builder(), x.dtype(), 0.0);
  // State: k, the polynomials of degrees k + 1 and k, the results so far, x, the degrees.
  const auto running = [](const Values& v) -> Values {
    return {sh::reduce_or(sh::broadcast_to(v[0], v[5].dims()) < v[5], wrap_dims({}, v[5].rank()))};
  };
  const auto step = [&polynomial](const Values& v) -> Values {
    const Value k = v[0] + 1.0;
    const Value spread = sh::broadcast_to(k, v[4].dims());
    const Value next = polynomial.next(v[4], spread, v[1], v[2]);
    return {k, next, v[1], choose(sh::eq(spread, v[5]), v[1], v[3]), v[4], v[5]};
  };
  const Value start = choose(degree < 0.0, 0.0, one);
  const Values end = sh::while_({k, polynomial.first(x), one, start, x, bounded}, running, step);
  if (!polynomial.grows_fast) return end[3];
  return choose(degree > limit, std::numeric_limits<double>::quiet_NaN(), end[3]);
}

}  // namespace

void register_polynomials(Registry& r) {
  for (const Polynomial& polynomial : kPolynomials) {
    r.add(polynomial.op, [&polynomial](Call& call) -> Values {
      const ElementType type = compute_type(to_floating(result_type(call, {"x", "n"})));
      const Values v = broadcast_arguments(call, {"x", "n"}, type);
      return {evaluate(polynomial, v[0], truncate(v[1]))};
    });
  }
}

}  // namespace torch_tpu::lowering
