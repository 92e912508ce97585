// Functions whose complex values need care: limits of powers, and the side of a branch cut, which
// the sign of a zero names. Of real numbers they are the plain functions.
#include <cmath>
#include <limits>

#include "lowering/expression.h"
#include "lowering/pointwise.h"

namespace torch_tpu::lowering {

namespace sh = stablehlo;

namespace {

// exp(re + im i) with the limits that C gives it.
Value exponential_of_parts(Value re, Value im) {
  const double inf = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Value no_angle = sh::not_(sh::is_finite(im));
  const Value nothing = no_angle & equals(re, -inf), everything = no_angle & equals(re, inf);
  const Value length = sh::exponential(re);
  const Value cosine = choose(nothing | everything, 1.0, sh::cosine(im));
  const Value sine = choose(everything, nan, choose(nothing, 1.0, sh::sine(im)));
  return sh::complex(length * cosine, choose(equals(im, 0.0), im, length * sine));
}

Value with_sign(Value x, Value sign) { return choose(differs(sign_bit(x), sign_bit(sign)), -x, x); }

// A function that is odd and real on the real axis: both parts have the argument's signs.
Value odd(Value x, Value (*function)(Value)) {
  const Value value = function(x);
  if (!sh::is_complex(x.dtype())) return value;
  return sh::complex(with_sign(sh::real(value), sh::real(x)),
                     with_sign(sh::imag(value), sh::imag(x)));
}

// The imaginary part has the argument's sign, or the other one.
Value on_side(Value x, Value (*function)(Value), bool other = false) {
  const Value value = function(x);
  if (!sh::is_complex(x.dtype())) return value;
  const Value side = sh::imag(x);
  return sh::complex(sh::real(value), with_sign(sh::imag(value), other ? -side : side));
}

Value infinite(Value x) { return equals(sh::abs(x), std::numeric_limits<double>::infinity()); }

Value finite(Value x) { return sh::is_finite(sh::real(x)) & sh::is_finite(sh::imag(x)); }

}  // namespace

Value power_of(Value x, Value y) {
  const Value power = sh::power(x, y);
  if (!sh::is_complex(x.dtype())) return power;
  const Value log = logarithm(x);
  const Value a = sh::real(y), b = sh::imag(y), c = sh::real(log), d = sh::imag(log);
  const Value limit = exponential_of_parts(a * c - b * d, a * d + b * c);
  const Value regular = finite(power) & finite(x) & finite(y) & differs(x, 0.0);
  return sh::select(regular, power, limit);
}

Value square_root(Value x) { return on_side(x, sh::sqrt); }
Value arc_sine(Value x) { return odd(x, sh::asin); }
Value arc_cosine(Value x) { return on_side(x, sh::acos, /*other=*/true); }
Value arc_tangent(Value x) { return odd(x, sh::atan); }
Value area_sine(Value x) { return odd(x, sh::asinh); }
Value area_cosine(Value x) { return on_side(x, sh::acosh); }
Value area_tangent(Value x) { return odd(x, sh::atanh); }

Value magnitude(Value x) {
  if (!sh::is_complex(x.dtype())) return sh::abs(x);
  const Value a = sh::real(x), b = sh::imag(x);
  // Infinity is as large whatever the other part is.
  return choose(infinite(a) | infinite(b), std::numeric_limits<double>::infinity(), sh::abs(x));
}

Value logarithm(Value x) {
  const Value log = sh::log(x);
  if (!sh::is_complex(x.dtype())) return log;
  const Value large = infinite(sh::real(x)) | infinite(sh::imag(x));
  return sh::complex(choose(large, std::numeric_limits<double>::infinity(), sh::real(log)),
                     sh::imag(log));
}

Value logarithm(Value x, double base) {
  const Value log = logarithm(x);
  const double scale = 1.0 / std::log(base);
  if (!sh::is_complex(x.dtype())) return log * scale;
  // Part by part: 0 times infinity is no number.
  return sh::complex(sh::real(log) * scale, sh::imag(log) * scale);
}

}  // namespace torch_tpu::lowering
