// Bessel functions of orders 0 and 1: J, Y, and the modified I and K with their scaled forms; and
// the Airy function Ai, which is a Bessel function of order 1/3 in disguise. Near the origin by the
// series of their smooth parts, beyond by their asymptotic forms.
#include <cmath>
#include <limits>
#include <numbers>
#include <span>

#include "lowering/airy_tables.h"
#include "lowering/bessel_tables.h"
#include "lowering/expression.h"
#include "lowering/pointwise.h"
#include "lowering/promotion.h"

namespace torch_tpu::lowering {

namespace sh = stablehlo;

namespace {

using Coefficients = std::span<const double>;

constexpr double kPi = std::numbers::pi;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// sum of coefficients[k] T_k(t), by Clenshaw's recurrence.
Value chebyshev(Coefficients coefficients, Value t) {
  const Value twice = 2.0 * t;
  Value next = constant_like(t, 0.0), after = next;
  for (size_t k = coefficients.size() - 1; k > 0; --k) {
    const Value current = twice * next - after + coefficients[k];
    after = next;
    next = current;
  }
  return t * next - after + coefficients[0];
}

Value odd(Value x, Value of_magnitude) { return choose(x < 0.0, -of_magnitude, of_magnitude); }

// --- I ------------------------------------------------------------------------------------------

// exp(-|x|) I(|x|).
Value scaled_i(Value x, int order) {
  const Value magnitude = abs(x);
  const Value small = magnitude <= 8.0;
  const Value near = choose(small, magnitude, 8.0);
  const Value far = choose(small, 8.0, magnitude);
  const Value t = near / 4.0 - 1.0, u = 16.0 / far - 1.0;
  const Value series =
      order == 0 ? chebyshev(bessel::kSmallI0, t) : near * chebyshev(bessel::kSmallI1, t);
  const Value tail =
      chebyshev(order == 0 ? Coefficients(bessel::kLargeI0) : Coefficients(bessel::kLargeI1), u);
  return choose(small, series, tail / sqrt(far));
}

Value i0e(Value x) { return scaled_i(x, 0); }
Value i1e(Value x) { return odd(x, scaled_i(x, 1)); }
Value i0(Value x) { return exponential(abs(x)) * i0e(x); }
Value i1(Value x) { return exponential(abs(x)) * i1e(x); }

// --- J and Y ------------------------------------------------------------------------------------

struct Oscillating {
  Value first_kind;   // of |x|
  Value second_kind;  // of |x|
};

// Both kinds for |x| > 8: an amplitude that dies away, and a phase.
Oscillating far_oscillating(Value magnitude, int order) {
  const Value t = 128.0 / (magnitude * magnitude) - 1.0;
  const Value p =
      chebyshev(order == 0 ? Coefficients(bessel::kLargeP0) : Coefficients(bessel::kLargeP1), t);
  const Value q =
      chebyshev(order == 0 ? Coefficients(bessel::kLargeQ0) : Coefficients(bessel::kLargeQ1), t) /
      magnitude;
  const Value phase = magnitude - (0.25 + 0.5 * order) * kPi;
  const Value amplitude = std::sqrt(2.0 / kPi) / sqrt(magnitude);
  const Value c = cosine(phase), s = sine(phase);
  const auto wave = [&](Value value) {
    return choose(equals(magnitude, kInfinity), 0.0, amplitude * value);
  };
  return {wave(p * c - q * s), wave(p * s + q * c)};
}

// J by its even or odd series, and what Y adds to the logarithm's part.
Oscillating near_oscillating(Value magnitude, int order) {
  const Value t = magnitude * magnitude / 32.0 - 1.0;
  if (order == 0) {
    const Value j = chebyshev(bessel::kSmallJ0, t);
    return {j, chebyshev(bessel::kSmallY0, t) + (2.0 / kPi) * log(magnitude) * j};
  }
  const Value j = magnitude * chebyshev(bessel::kSmallJ1, t);
  const Value rest = magnitude * chebyshev(bessel::kSmallY1, t);
  return {j, rest + (2.0 / kPi) * (log(magnitude) * j - 1.0 / magnitude)};
}

Oscillating oscillating(Value x, int order) {
  const Value magnitude = abs(x);
  const Value small = magnitude <= 8.0;
  const Oscillating near = near_oscillating(choose(small, magnitude, 8.0), order);
  const Oscillating far = far_oscillating(choose(small, 8.0, magnitude), order);
  return {choose(small, near.first_kind, far.first_kind),
          choose(small, near.second_kind, far.second_kind)};
}

// Functions with a pole at 0 and no real value below.
Value right_of_pole(Value x, double pole, Value value) {
  const Value outside = choose(x < 0.0, std::numeric_limits<double>::quiet_NaN(), value);
  return choose(equals(x, 0.0), pole, outside);
}

Value j0(Value x) { return oscillating(x, 0).first_kind; }
Value j1(Value x) { return odd(x, oscillating(x, 1).first_kind); }
Value y0(Value x) { return right_of_pole(x, -kInfinity, oscillating(x, 0).second_kind); }
Value y1(Value x) { return right_of_pole(x, -kInfinity, oscillating(x, 1).second_kind); }

// sin(x) / x, by its series where the quotient is not defined or not precise.
Value spherical_j0(Value x) {
  const Value square = x * x;
  const Value series = 1.0 - square / 6.0 * (1.0 - square / 20.0 * (1.0 - square / 42.0));
  const Value quotient = choose(is_inf(x), 0.0, sine(x) / x);
  return choose(abs(x) < 0.05, series, quotient);
}

// --- K ------------------------------------------------------------------------------------------

// exp(x) K(x), or K(x).
Value second_modified(Value x, int order, bool scaled) {
  const Value small = x <= 2.0;
  const Value near = choose(small, x, 2.0);
  const Value far = choose(small, 2.0, x);
  const Value t = near * near / 2.0 - 1.0, logarithm = log(0.5 * near);
  const Value series =
      order == 0 ? chebyshev(bessel::kSmallK0, t) - logarithm * i0(near)
                 : near * chebyshev(bessel::kSmallK1, t) + logarithm * i1(near) + 1.0 / near;
  const Value tail =
      chebyshev(order == 0 ? Coefficients(bessel::kLargeK0) : Coefficients(bessel::kLargeK1),
                4.0 / far - 1.0) /
      sqrt(far);
  const Value value = scaled ? choose(small, series * exponential(near), tail)
                             : choose(small, series, tail * exponential(-far));
  return right_of_pole(x, kInfinity, value);
}

Value k0(Value x) { return second_modified(x, 0, false); }
Value k1(Value x) { return second_modified(x, 1, false); }
Value k0e(Value x) { return second_modified(x, 0, true); }
Value k1e(Value x) { return second_modified(x, 1, true); }

// --- Ai -----------------------------------------------------------------------------------------

Value airy_ai(Value x) {
  const double z2 = std::pow(2.0, 2.5) / 3.0;
  const Value magnitude = abs(x);
  const Value small = magnitude <= 2.0;
  const Value near = choose(small, x * 0.5, 0.0);
  const Value far = choose(small, 2.0, magnitude);
  const Value z = (2.0 * far) * sqrt(far) / 3.0;
  const Value ratio = z2 / z, root = sqrt(sqrt(far));
  // Beyond this it is zero even in float64.
  const Value decay = choose(far > 103.892, 0.0,
                             exponential(-z) * chebyshev(airy::kDecay, 2.0 * ratio - 1.0) / root);
  const Value t = 2.0 * (ratio * ratio) - 1.0;
  const Value angle = z + kPi / 4.0;
  const Value wave =
      chebyshev(airy::kWaveP, t) * sine(angle) - chebyshev(airy::kWaveQ, t) / z * cosine(angle);
  const Value oscillating = wave * std::numbers::inv_sqrtpi / root;
  const Value beyond = choose(x < 0.0, oscillating, decay);
  const Value bounded =
      choose(equals(magnitude, kInfinity), std::numeric_limits<double>::quiet_NaN(), beyond);
  return choose(is_nan(x), x, choose(small, chebyshev(airy::kNear, near), bounded));
}

struct BesselEntry {
  const char* op;
  const char* argument;
  Value (*function)(Value);
};

constexpr BesselEntry kBessel[] = {
    {"aten::special_airy_ai", "x", airy_ai},
    {"aten::i0", "self", i0},
    {"aten::special_i0e", "self", i0e},
    {"aten::special_i1", "self", i1},
    {"aten::special_i1e", "self", i1e},
    {"aten::special_bessel_j0", "self", j0},
    {"aten::special_bessel_j1", "self", j1},
    {"aten::special_bessel_y0", "self", y0},
    {"aten::special_bessel_y1", "self", y1},
    {"aten::special_spherical_bessel_j0", "x", spherical_j0},
    {"aten::special_modified_bessel_i0", "self", i0},
    {"aten::special_modified_bessel_i1", "self", i1},
    {"aten::special_modified_bessel_k0", "self", k0},
    {"aten::special_modified_bessel_k1", "self", k1},
    {"aten::special_scaled_modified_bessel_k0", "x", k0e},
    {"aten::special_scaled_modified_bessel_k1", "x", k1e},
};

}  // namespace

void register_bessel(Registry& r) {
  for (const BesselEntry& entry : kBessel) {
    r.add(entry.op, [entry](Call& call) -> Values {
      const Value self = call.tensor(entry.argument);
      return {entry.function(sh::convert(self, compute_type(to_floating(self.dtype()))))};
    });
  }
}

}  // namespace torch_tpu::lowering
