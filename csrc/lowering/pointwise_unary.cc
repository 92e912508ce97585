// Functions of one operand. Most are a line in a table.
#include <cmath>
#include <limits>
#include <numbers>

#include "lowering/expression.h"
#include "lowering/pointwise.h"
#include "lowering/promotion.h"

namespace torch_tpu::lowering {

namespace sh = stablehlo;

namespace {

using Unary = Value (*)(Value);

constexpr double kPi = std::numbers::pi;

Value identity(Value x) { return x; }
Value reciprocal(Value x) { return 1.0 / x; }
Value reciprocal_root(Value x) {
  return sh::is_complex(x.dtype()) ? 1.0 / square_root(x) : sh::rsqrt(x);
}
Value exp2(Value x) { return power_of(constant_like(x, 2.0), x); }
Value log2(Value x) { return logarithm(x, 2.0); }
Value log10(Value x) { return logarithm(x, 10.0); }
Value frac(Value x) { return x - truncate(x); }
Value relu(Value x) { return maximum(x, constant_like(x, 0.0)); }

// -1, 0 or 1; 0 for NaN.
Value sign_or_zero(Value x) {
  if (sh::is_bool(x.dtype())) return x;
  const Value positive = sh::convert(x > 0.0, x.dtype());
  if (sh::is_unsigned_int(x.dtype())) return positive;
  return positive - sh::convert(x < 0.0, x.dtype());
}

Value absolute(Value x) {
  const ElementType type = x.dtype();
  return sh::is_bool(type) || sh::is_unsigned_int(type) ? x : magnitude(x);
}

// x / |x| for complex numbers.
Value sgn(Value x) {
  if (!sh::is_complex(x.dtype())) return sign_or_zero(x);
  const Value size = sh::abs(x);
  const Value zero = equals(size, 0.0);
  const Value divisor = choose(zero, 1.0, size);
  return sh::complex(sh::real(x) / divisor, sh::imag(x) / divisor);
}

Value angle(Value x) {
  if (sh::is_complex(x.dtype())) return sh::atan2(sh::imag(x), sh::real(x));
  const Value value = choose(x < 0.0, constant_like(x, kPi), 0.0);
  return choose(is_nan(x), x, value);
}

Value conjugate(Value x) {
  return sh::is_complex(x.dtype()) ? sh::complex(sh::real(x), -sh::imag(x)) : x;
}

Value sinc(Value x) {
  const Value scaled = x * kPi;
  const Value zero = equals(x, 0.0);
  return choose(zero, 1.0, sine(scaled) / scaled);
}

Value sigmoid(Value x) {
  return sh::is_complex(x.dtype()) ? 1.0 / (1.0 + exponential(-x)) : sh::logistic(x);
}

enum class Domain {
  kFloat,     // integers compute in the default float type
  kSame,      // any type, as it is
  kRounding,  // integers are their own result
};

struct UnaryEntry {
  const char* op;
  Unary function;
  Domain domain;
};

constexpr UnaryEntry kUnary[] = {
    {"aten::abs", absolute, Domain::kSame},
    {"aten::neg", sh::negate, Domain::kSame},
    {"aten::sign", sign_or_zero, Domain::kSame},
    {"aten::sgn", sgn, Domain::kSame},
    {"aten::relu", relu, Domain::kSame},
    {"aten::positive", identity, Domain::kSame},
    {"aten::conj_physical", conjugate, Domain::kSame},
    {"aten::_conj_physical", conjugate, Domain::kSame},
    {"aten::ceil", sh::ceil, Domain::kRounding},
    {"aten::floor", sh::floor, Domain::kRounding},
    {"aten::trunc", truncate, Domain::kRounding},
    {"aten::frac", frac, Domain::kFloat},
    {"aten::angle", angle, Domain::kFloat},
    {"aten::reciprocal", reciprocal, Domain::kFloat},
    {"aten::sqrt", square_root, Domain::kFloat},
    {"aten::rsqrt", reciprocal_root, Domain::kFloat},
    {"aten::exp", sh::exponential, Domain::kFloat},
    {"aten::exp2", exp2, Domain::kFloat},
    {"aten::expm1", sh::exponential_minus_one, Domain::kFloat},
    {"aten::log", logarithm, Domain::kFloat},
    {"aten::log1p", sh::log_plus_one, Domain::kFloat},
    {"aten::log2", log2, Domain::kFloat},
    {"aten::log10", log10, Domain::kFloat},
    {"aten::sin", sh::sine, Domain::kFloat},
    {"aten::cos", sh::cosine, Domain::kFloat},
    {"aten::tan", sh::tan, Domain::kFloat},
    {"aten::asin", arc_sine, Domain::kFloat},
    {"aten::acos", arc_cosine, Domain::kFloat},
    {"aten::atan", arc_tangent, Domain::kFloat},
    {"aten::sinh", sh::sinh, Domain::kFloat},
    {"aten::cosh", sh::cosh, Domain::kFloat},
    {"aten::tanh", sh::tanh, Domain::kFloat},
    {"aten::asinh", area_sine, Domain::kFloat},
    {"aten::acosh", area_cosine, Domain::kFloat},
    {"aten::atanh", area_tangent, Domain::kFloat},
    {"aten::sigmoid", sigmoid, Domain::kFloat},
    {"aten::sinc", sinc, Domain::kFloat},
    {"aten::erf", sh::erf, Domain::kFloat},
    {"aten::erfc", sh::erfc, Domain::kFloat},
    {"aten::erfinv", sh::erf_inv, Domain::kFloat},
    {"aten::lgamma", sh::lgamma, Domain::kFloat},
};

// round, round.decimals: half to even, at a decimal place.
Values round_rule(Call& call) {
  const Value self = call.tensor("self");
  if (!sh::is_float(self.dtype())) return {self};
  const Value x = sh::convert(self, compute_type(self.dtype()));
  const int64_t decimals = call.integer_or("decimals", 0);
  if (decimals == 0) return {round_nearest_even(x)};
  const double unit = std::pow(10.0, std::abs(static_cast<double>(decimals)));
  if (decimals < 0) return {round_nearest_even(x / unit) * unit};
  return {round_nearest_even(x * unit) / unit};
}

Values nan_to_num_rule(Call& call) {
  const Value self = call.tensor("self");
  if (!sh::is_float(self.dtype()) && !sh::is_complex(self.dtype())) return {self};
  const auto fix = [&](Value x) {
    const auto number = [&](std::string_view name, Value otherwise) {
      return sh::broadcast_to(call.has(name) ? call.number(name, x.dtype()) : otherwise, x.dims());
    };
    // The largest finite number of a type is the one before infinity.
    const TensorType one{x.dtype(), {}};
    const Value zero = sh::splat(call.builder(), one, 0.0);
    const Value high = sh::next_after(sh::highest(call.builder(), one), zero);
    const Value low = sh::next_after(sh::lowest(call.builder(), one), zero);
    const Value positive = choose(is_pos_inf(x), number("posinf", high), x);
    const Value negative = choose(is_neg_inf(x), number("neginf", low), positive);
    return choose(is_nan(x), number("nan", zero), negative);
  };
  if (sh::is_complex(self.dtype())) return {sh::complex(fix(sh::real(self)), fix(sh::imag(self)))};
  return {fix(self)};
}

// x = mantissa 2^exponent with the mantissa in [0.5, 1), from the bits. Numbers below the normal
// range are scaled into it first.
Values frexp_rule(Call& call) {
  const Value self = call.tensor("self");
  const bool wide = self.dtype() == ElementType::kF64;
  const Value x = sh::convert(self, wide ? ElementType::kF64 : ElementType::kF32);
  const int digits = wide ? 52 : 23, bias = wide ? 1023 : 127;
  const int64_t field = wide ? 0x7ff : 0xff;
  const double smallest = std::ldexp(1.0, 1 - bias);
  const Value tiny = abs(x) < smallest;
  const Value raw = sh::bitcast_convert(choose(tiny, x * std::ldexp(1.0, digits + 1), x),
                                        sh::bits_type(x.dtype()));
  const Value width = constant_like(raw, digits), mask = sh::full_like(raw, field);
  const Value biased = and_(sh::shift_right_logical(raw, width), mask);
  const Value half = sh::shift_left(sh::full_like(raw, int64_t{bias - 1}), width);
  const Value fraction = and_(raw, not_(sh::shift_left(mask, width)));
  const Value mantissa = sh::bitcast_convert(or_(fraction, half), x.dtype());
  const Value exponent = sh::convert(biased, ElementType::kS32) - static_cast<double>(bias - 1);
  const Value regular = and_(is_finite(x), differs(x, 0.0));
  const Value adjusted = choose(tiny, exponent - static_cast<double>(digits + 1), exponent);
  return {sh::convert(choose(regular, mantissa, x), self.dtype()), choose(regular, adjusted, 0.0)};
}

Values logit_rule(Call& call) {
  const Value self = call.tensor("self");
  Value x = sh::convert(self, compute_type(to_floating(self.dtype())));
  if (call.has("eps")) {
    const Value eps = sh::broadcast_to(call.number("eps", x.dtype()), x.dims());
    const Value clipped = minimum(maximum(x, eps), 1.0 - eps);
    x = choose(eps < 0.0, x, clipped);  // a negative eps means none
  }
  return {log(x / (1.0 - x))};
}

}  // namespace

void register_unary(Registry& r) {
  for (const UnaryEntry& entry : kUnary) {
    r.add(entry.op, [entry](Call& call) -> Values {
      const Value self = call.tensor("self");
      const ElementType type =
          entry.domain == Domain::kFloat ? to_floating(self.dtype()) : self.dtype();
      if (entry.domain == Domain::kRounding && !sh::is_float(type)) return {self};
      return {entry.function(sh::convert(self, compute_type(type)))};
    });
  }
  r.add("aten::round", round_rule);
  r.add("aten::frexp", frexp_rule);
  r.add("aten::nan_to_num", nan_to_num_rule);
  r.add("aten::logit", logit_rule);
}

}  // namespace torch_tpu::lowering
