// Arithmetic on two or three operands, promoted together; bfloat16 and float16 compute in float32.
#include <cmath>

#include "lowering/expression.h"
#include "lowering/pointwise.h"
#include "lowering/promotion.h"

namespace torch_tpu::lowering {

namespace sh = stablehlo;

Value truncate(Value x) {
  if (!sh::is_float(x.dtype())) return x;
  return choose(x < 0.0, ceil(x), floor(x));
}

namespace {

using Names = std::initializer_list<std::string_view>;
using Binary = Value (*)(Value, Value);

// Beside bfloat16 and float16, PyTorch keeps the float32 precision of a number that multiplies or
// divides, and rounds one that is added, compared, ...
enum class Numbers { kRounded, kPrecise };

bool has_type(const Call& call, std::string_view name, ElementType type) {
  const auto* tensor = std::get_if<TensorArgument>(call.find(name));
  return tensor && tensor->value.dtype() == type;
}

Values operands_of(const Call& call, Names names, ElementType type, Numbers numbers) {
  const ElementType compute = compute_type(type);
  Values values = broadcast_arguments(call, names, compute);
  if (compute == type || numbers == Numbers::kPrecise) return values;
  size_t at = 0;
  for (const std::string_view name : names) {
    Value& value = values[at++];
    if (has_type(call, name, type)) continue;
    value = rounded_to(value, type);
  }
  return values;
}

Values operands(const Call& call, Names names, Numbers numbers = Numbers::kRounded) {
  return operands_of(call, names, result_type(call, names), numbers);
}

Values floating_operands(const Call& call, Names names, Numbers numbers = Numbers::kRounded) {
  return operands_of(call, names, to_floating(result_type(call, names)), numbers);
}
// `value` times the number argument `name`; nothing to do for a known 1.
Value scaled(const Call& call, std::string_view name, Value value) {
  if (!call.has(name) || call.is_known(name, 1)) return value;
  return value * sh::broadcast_to(call.number(name, value.dtype()), value.dims());
}

// The checks of PyTorch's kernels that its meta kernels leave out.
void check_alpha(const Call& call, ElementType type) {
  if (!call.has("alpha")) return;
  const ElementType alpha = call.number_type("alpha");
  if (sh::is_bool(alpha) && !sh::is_bool(type)) {
    throw InvalidArgument("Boolean alpha only supported for Boolean results.");
  }
  if (!sh::is_float(type) && !sh::is_complex(type) && alpha != ElementType::kS64 &&
      !sh::is_bool(alpha)) {
    throw InvalidArgument(
        "For integral input tensors, argument alpha must not be a floating point number.");
  }
}

void check_subtraction(const Call& call) {
  for (const char* name : {"self", "other"}) {
    const auto* tensor = std::get_if<TensorArgument>(call.find(name));
    const ElementType type = tensor ? tensor->value.dtype() : call.number_type(name);
    if (!sh::is_bool(type)) continue;
    throw InvalidArgument(
        "Subtraction, the `-` operator, with a bool tensor is not supported. If you are trying to "
        "invert a mask, use the `~` or `logical_not()` operator instead.");
  }
}

void check_same_type(const Call& call, const char* a, const char* b) {
  if (call.tensor(a).dtype() == call.tensor(b).dtype()) return;
  throw InvalidArgument(call.op() + ": expected " + a + " and " + b + " of one dtype");
}

Values add_rule(Call& call) {
  const Values v = operands(call, {"self", "other"});
  check_alpha(call, v[0].dtype());
  if (call.has("alpha") && call.is_known("alpha", -1)) return {v[0] - v[1]};
  return {v[0] + scaled(call, "alpha", v[1])};
}

Values sub_rule(Call& call) {
  check_subtraction(call);
  const Values v = operands(call, {"self", "other"});
  check_alpha(call, v[0].dtype());
  if (call.has("alpha") && call.is_known("alpha", -1)) return {v[0] + v[1]};
  return {v[0] - scaled(call, "alpha", v[1])};
}

Values rsub_rule(Call& call) {
  check_subtraction(call);
  const Values v = operands(call, {"self", "other"});
  check_alpha(call, v[0].dtype());
  return {v[1] - scaled(call, "alpha", v[0])};
}

Value floor_divide_integers(Value a, Value b) {
  const Value quotient = a / b;
  if (sh::is_unsigned_int(a.dtype())) return quotient;
  const Value inexact = differs(remainder(a, b), 0.0);
  const Value opposite = differs(sh::lt(a, constant_like(a, 0)), sh::lt(b, constant_like(b, 0)));
  return choose(inexact & opposite, quotient - 1.0, quotient);
}

// Python's // on floats: exact for representable quotients, where floor(a / b) can be one off.
Value floor_divide_floats(Value a, Value b) {
  const Value ratio = a / b;
  const Value rest = remainder(a, b);
  const Value exact = (a - rest) / b;
  const Value below = differs(rest, 0.0) & differs(b < 0.0, rest < 0.0);
  const Value quotient = choose(below, exact - 1.0, exact);
  const Value low = floor(quotient);
  const Value rounded = choose((quotient - low) > 0.5, low + 1.0, low);
  // A zero quotient has the sign of a / b.
  const Value zero = choose(ratio < 0.0, -constant_like(a, 0.0), ratio * 0.0);
  const Value finite = choose(equals(quotient, 0.0), zero, rounded);
  return choose(equals(b, 0.0), ratio, finite);
}

Value remainder_rule(Value a, Value b) {
  const Value rest = remainder(a, b);
  if (sh::is_unsigned_int(a.dtype())) return rest;
  const Value wrong_sign = differs(rest, 0.0) & differs(rest < 0.0, b < 0.0);
  return choose(wrong_sign, rest + b, rest);
}

// A 0 that is known before a program runs is no divisor of integers.
void require_divisor(const Call& call) {
  if (call.is_known("other", 0) && sh::is_integer(result_type(call, {"self", "other"})) &&
      call.tensor("self").numel() > 0) {
    throw InvalidArgument("ZeroDivisionError");
  }
}

Values div_rule(Call& call) {
  const std::string mode = call.string("rounding_mode");
  const ElementType type = result_type(call, {"self", "other"});
  const Values v = mode.empty() ? floating_operands(call, {"self", "other"}, Numbers::kPrecise)
                                : operands(call, {"self", "other"}, Numbers::kPrecise);
  // The fraction is dropped from the quotient as the narrow type holds it.
  if (mode == "trunc" && compute_type(type) != type) {
    return {truncate(rounded_to(v[0] / v[1], type))};
  }
  return {divide_rounded(v[0], v[1], mode)};
}

Values floor_divide_rule(Call& call) {
  const Values v = operands(call, {"self", "other"}, Numbers::kPrecise);
  return {divide_rounded(v[0], v[1], "floor")};
}

// x to a whole power, by squaring.
Value integer_power(Value x, uint64_t exponent) {
  if (exponent == 0) return constant_like(x, 1.0);
  Value result;
  for (Value square = x;; square = square * square) {
    if (exponent & 1) result = result ? result * square : square;
    exponent >>= 1;
    if (exponent == 0) return result;
  }
}

Values pow_known_exponent(const Call& call, double exponent) {
  const ElementType type = compute_type(result_type(call, {"self", "exponent"}));
  const Value x = sh::convert(call.tensor("self"), type);
  if (sh::is_integer(type)) {
    if (exponent < 0) {
      throw InvalidArgument("Integers to negative integer powers are not allowed.");
    }
    return {integer_power(x, static_cast<uint64_t>(exponent))};
  }
  if (exponent == 0) return {constant_like(x, 1.0)};
  if (exponent == 1) return {x};
  if (exponent == 2) return {x * x};
  if (exponent == 3) return {x * x * x};
  if (exponent == 0.5) return {square_root(x)};
  if (exponent == -0.5) return {1.0 / square_root(x)};
  if (exponent == -1) return {1.0 / x};
  if (exponent == -2) return {1.0 / (x * x)};
  return {power_of(x, constant_like(x, exponent))};
}

Values pow_rule(Call& call) {
  const std::optional<double> exponent = call.known_number("exponent");
  if (exponent && call.number_type("exponent") != ElementType::kC128) {
    return pow_known_exponent(call, *exponent);
  }
  const Values v = operands(call, {"self", "exponent"});
  if (call.is_known("self", 1)) return {constant_like(v[1], 1.0)};
  if (sh::is_bool(v[0].dtype())) return {v[0] | not_(v[1])};
  return {power_of(v[0], v[1])};
}

Value fmax_rule(Value a, Value b) {
  if (!sh::is_float(a.dtype())) return maximum(a, b);
  return choose(is_nan(a), b, choose(is_nan(b), a, maximum(a, b)));
}

Value fmin_rule(Value a, Value b) {
  if (!sh::is_float(a.dtype())) return minimum(a, b);
  return choose(is_nan(a), b, choose(is_nan(b), a, minimum(a, b)));
}

Value copysign_rule(Value a, Value b) {
  return choose(differs(sign_bit(a), sign_bit(b)), negate(a), a);
}

Value hypot_rule(Value a, Value b) {
  const Value x = abs(a), y = abs(b);
  const Value large = maximum(x, y);
  const Value ratio = minimum(x, y) / large;
  const Value scaled_root = large * sqrt(1.0 + ratio * ratio);
  const Value finite = choose(equals(large, 0.0), large, scaled_root);
  const Value infinite = is_inf(a) | is_inf(b);
  return choose(infinite, INFINITY, finite);
}

Value xlogy_rule(Value x, Value y) {
  const Value product = choose(equals(x, 0.0), 0.0, x * log(y));
  return choose(is_nan(y), y, product);
}

Value xlog1py_rule(Value x, Value y) {
  const Value product = choose(equals(x, 0.0), 0.0, x * log_plus_one(y));
  return choose(is_nan(y), y, product);
}

Value logaddexp_rule(Value a, Value b) {
  const Value same = is_inf(a) & equals(a, b);  // inf - inf would be NaN
  return choose(same, a, maximum(a, b) + log_plus_one(exponential(-abs(a - b))));
}

Value logaddexp2_rule(Value a, Value b) {
  const double ln2 = std::log(2.0);
  const Value same = is_inf(a) & equals(a, b);
  const Value tail = log_plus_one(exponential(-abs(a - b) * ln2)) * (1.0 / ln2);
  return choose(same, a, maximum(a, b) + tail);
}

// Euclid's algorithm on whole tensors, until every remainder is zero.
Value gcd_rule(Value a, Value b) {
  if (!sh::is_integer(a.dtype())) {
    throw InvalidArgument("gcd and lcm are for integers", InvalidArgument::Kind::kNotImplemented);
  }
  const auto magnitude = [](Value v) { return sh::is_unsigned_int(v.dtype()) ? v : abs(v); };
  const auto pending = [](const Values& v) -> Values {
    Dims all;
    for (int64_t i = 0; i < v[1].rank(); ++i) all.push_back(i);
    return {sh::reduce_or(differs(v[1], 0.0), all)};
  };
  const auto step = [](const Values& v) -> Values {
    const Value done = equals(v[1], 0.0);
    const Value rest = remainder(v[0], choose(done, 1.0, v[1]));
    return {choose(done, v[0], v[1]), choose(done, 0.0, rest)};
  };
  return sh::while_({magnitude(a), magnitude(b)}, pending, step)[0];
}

Value lcm_rule(Value a, Value b) {
  const Value divisor = gcd_rule(a, b);
  const Value none = equals(divisor, 0.0);
  const Value multiple = a / choose(none, 1.0, divisor) * b;
  const Value positive = sh::is_unsigned_int(a.dtype()) ? multiple : abs(multiple);
  return choose(none, 0.0, positive);
}

Values heaviside_rule(Call& call) {
  check_same_type(call, "self", "values");
  const Values v = operands(call, {"self", "values"});
  return {choose(equals(v[0], 0.0), v[1], sh::convert(v[0] > 0.0, v[0].dtype()))};
}

// The result moves in the operands' own type: the neighbour of a bfloat16 is a bfloat16.
Values nextafter_rule(Call& call) {
  const ElementType type = result_type(call, {"self", "other"});
  const Values v = broadcast_arguments(call, {"self", "other"}, type);
  return {sh::next_after(v[0], v[1])};
}

Values clamp_rule(Call& call) {
  const ElementType type = compute_type(result_type(call, {"self", "min", "max"}));
  const bool has_min = call.has("min"), has_max = call.has("max");
  if (has_min && has_max) {
    const Values v = broadcast_arguments(call, {"self", "min", "max"}, type);
    return {minimum(maximum(v[0], v[1]), v[2])};
  }
  if (!has_min && !has_max) {
    throw InvalidArgument("torch.clamp: At least one of 'min' or 'max' must not be None");
  }
  const Values v = broadcast_arguments(call, {"self", has_min ? "min" : "max"}, type);
  return {has_min ? maximum(v[0], v[1]) : minimum(v[0], v[1])};
}

Values addcmul_rule(Call& call) {
  const Values v = operands(call, {"self", "tensor1", "tensor2"});
  return {v[0] + scaled(call, "value", v[1]) * v[2]};
}

Values addcdiv_rule(Call& call) {
  const Values v = operands(call, {"self", "tensor1", "tensor2"});
  return {v[0] + scaled(call, "value", v[1]) / v[2]};
}

// Two formulas, so that the weights 0 and 1 give the ends exactly.
Values lerp_rule(Call& call) {
  const ElementType type = compute_type(result_type(call, {"self", "end"}));
  const Values v = broadcast_arguments(call, {"self", "end", "weight"}, type);
  const Value weight = v[2], distance = v[1] - v[0];
  const Value small = sh::abs(weight) < (sh::is_complex(type) ? constant_like(sh::abs(weight), 0.5)
                                                              : constant_like(weight, 0.5));
  return {choose(small, v[0] + weight * distance, v[1] - distance * (1.0 - weight))};
}

Values ldexp_rule(Call& call) {
  const Values v = floating_operands(call, {"self", "other"});
  return {v[0] * power(constant_like(v[1], 2.0), v[1])};
}

Values polar_rule(Call& call) {
  check_same_type(call, "abs", "angle");
  const Values v = operands(call, {"abs", "angle"});
  return {sh::complex(v[0] * cosine(v[1]), v[0] * sine(v[1]))};
}

Values complex_rule(Call& call) {
  check_same_type(call, "real", "imag");
  const Values v = operands(call, {"real", "imag"});
  const Value z = sh::complex(v[0], v[1]);
  if (call.num_outputs() > 0 && call.output().dtype != z.dtype()) {
    throw InvalidArgument("complex: 'out' does not have the dtype of the result");
  }
  return {z};
}

struct BinaryEntry {
  const char* op;
  Binary function;
  bool floating;  // integers compute in the default float type
  Numbers numbers = Numbers::kRounded;
  bool complex = false;  // has a meaning for complex numbers
};

constexpr BinaryEntry kBinary[] = {
    {"aten::mul", sh::multiply, false, Numbers::kPrecise, true},
    {"aten::true_divide", sh::divide, true, Numbers::kPrecise, true},
    {"aten::remainder", remainder_rule, false},
    {"aten::fmod", sh::remainder, false},
    {"aten::maximum", sh::maximum, false},
    {"aten::minimum", sh::minimum, false},
    {"aten::fmax", fmax_rule, false},
    {"aten::fmin", fmin_rule, false},
    {"aten::gcd", gcd_rule, false},
    {"aten::lcm", lcm_rule, false},
    {"aten::atan2", sh::atan2, true},
    {"aten::hypot", hypot_rule, true},
    {"aten::copysign", copysign_rule, true},
    {"aten::xlogy", xlogy_rule, true},
    {"aten::special_xlog1py", xlog1py_rule, true},
    {"aten::special_zeta", hurwitz_zeta, true},
    {"aten::logaddexp", logaddexp_rule, true},
    {"aten::logaddexp2", logaddexp2_rule, true},
};

}  // namespace

Value divide_rounded(Value a, Value b, std::string_view mode) {
  if (mode.empty()) return a / b;
  const bool is_float = sh::is_float(a.dtype());
  if (mode == "trunc") return is_float ? truncate(a / b) : a / b;
  if (mode == "floor") return is_float ? floor_divide_floats(a, b) : floor_divide_integers(a, b);
  throw InvalidArgument(
      "div expected rounding_mode to be one of None, 'trunc', or 'floor' but found '" +
      std::string(mode) + "'");
}

void register_arithmetic(Registry& r) {
  for (const BinaryEntry& entry : kBinary) {
    r.add(entry.op, [entry](Call& call) -> Values {
      if (entry.function == remainder_rule || entry.function == Binary{sh::remainder}) {
        require_divisor(call);
      }
      const Values v = entry.floating ? floating_operands(call, {"self", "other"}, entry.numbers)
                                      : operands(call, {"self", "other"}, entry.numbers);
      if (sh::is_complex(v[0].dtype()) && !entry.complex) {
        throw Unsupported(call.op() + ": complex numbers");
      }
      return {entry.function(v[0], v[1])};
    });
  }
  r.add("aten::add", add_rule);
  r.add("aten::_add_relu", [](Call& call) -> Values {
    const Value sum = add_rule(call).front();
    return {maximum(sum, constant_like(sum, 0.0))};
  });
  r.add("aten::sub", sub_rule);
  r.add("aten::rsub", rsub_rule);
  r.add("aten::div", div_rule);
  r.add("aten::floor_divide", floor_divide_rule);
  r.add("aten::pow", pow_rule, {.known_numbers = {"exponent"}});
  r.add("aten::clamp", clamp_rule);
  r.add("aten::clamp_min", clamp_rule);
  r.add("aten::clamp_max", clamp_rule);
  r.add("aten::addcmul", addcmul_rule);
  r.add("aten::addcdiv", addcdiv_rule);
  r.add("aten::lerp", lerp_rule);
  r.add("aten::heaviside", heaviside_rule);
  r.add("aten::nextafter", nextafter_rule);
  r.add("aten::ldexp", ldexp_rule);
  r.add("aten::polar", polar_rule);
  r.add("aten::complex", complex_rule);
}

}  // namespace torch_tpu::lowering
