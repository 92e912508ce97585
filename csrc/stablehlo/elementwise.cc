#include "stablehlo/attributes.h"
#include "stablehlo/check.h"

namespace torch_tpu::stablehlo {
namespace {

// Kinds of element types an operation accepts.
using Kinds = unsigned;
constexpr Kinds kBoolKind = 1, kSignedKind = 2, kUnsignedKind = 4, kFloatKind = 8,
                kComplexKind = 16;
constexpr Kinds kIntegerKinds = kSignedKind | kUnsignedKind;
constexpr Kinds kInexactKinds = kFloatKind | kComplexKind;
constexpr Kinds kNumberKinds = kIntegerKinds | kInexactKinds;

Kinds kind_of(ElementType type) {
  if (is_bool(type)) return kBoolKind;
  if (is_signed_int(type)) return kSignedKind;
  if (is_unsigned_int(type)) return kUnsignedKind;
  return is_float(type) ? kFloatKind : kComplexKind;
}

std::string describe(Kinds kinds) {
  constexpr std::pair<Kinds, const char*> kNames[] = {{kBoolKind, "bool"},
                                                      {kSignedKind, "signed integer"},
                                                      {kUnsignedKind, "unsigned integer"},
                                                      {kFloatKind, "float"},
                                                      {kComplexKind, "complex"}};
  std::string out;
  for (const auto& [kind, text] : kNames) {
    if (!(kinds & kind)) continue;
    if (!out.empty()) out += " or ";
    out += text;
  }
  return out;
}

void check_kind(std::string_view op, Value x, Kinds allowed) {
  if (kind_of(x.dtype()) & allowed) return;
  fail(op, "expected a " + describe(allowed) + " tensor, got " + to_string(x.type()));
}

void check_same(std::string_view op, Value a, Value b) {
  if (a.type() == b.type()) return;
  fail(op, "operands must have the same type, got " + to_string(a.type()) + " and " +
               to_string(b.type()) + "; use broadcast_to() and convert()");
}

Value unary(std::string_view op, Value x, Kinds allowed) {
  check_kind(op, x, allowed);
  return x.builder().append1(op, {x}, "", x.type());
}

// An operation whose result has another element type.
Value unary_to(std::string_view op, Value x, Kinds allowed, ElementType result) {
  check_kind(op, x, allowed);
  return x.builder().append1(op, {x}, "", {result, x.dims()});
}

Value binary(std::string_view op, Value a, Value b, Kinds allowed) {
  check_same(op, a, b);
  check_kind(op, a, allowed);
  return a.builder().append1(op, {a, b}, "", a.type());
}

}  // namespace

Value abs(Value x) {
  if (is_unsigned_int(x.dtype())) return x;  // StableHLO has no abs of unsigned numbers
  return unary_to("stablehlo.abs", x, kSignedKind | kInexactKinds, real_type(x.dtype()));
}
Value negate(Value x) { return unary("stablehlo.negate", x, kNumberKinds); }
Value exponential(Value x) { return unary("stablehlo.exponential", x, kInexactKinds); }
Value exponential_minus_one(Value x) {
  return unary("stablehlo.exponential_minus_one", x, kInexactKinds);
}
Value log(Value x) { return unary("stablehlo.log", x, kInexactKinds); }
Value log_plus_one(Value x) { return unary("stablehlo.log_plus_one", x, kInexactKinds); }
Value logistic(Value x) { return unary("stablehlo.logistic", x, kInexactKinds); }
Value sqrt(Value x) { return unary("stablehlo.sqrt", x, kInexactKinds); }
Value rsqrt(Value x) { return unary("stablehlo.rsqrt", x, kInexactKinds); }
Value cbrt(Value x) { return unary("stablehlo.cbrt", x, kFloatKind); }
Value sine(Value x) { return unary("stablehlo.sine", x, kInexactKinds); }
Value cosine(Value x) { return unary("stablehlo.cosine", x, kInexactKinds); }
Value tan(Value x) { return unary("stablehlo.tan", x, kInexactKinds); }
Value tanh(Value x) { return unary("stablehlo.tanh", x, kInexactKinds); }
Value floor(Value x) { return unary("stablehlo.floor", x, kFloatKind); }
Value ceil(Value x) { return unary("stablehlo.ceil", x, kFloatKind); }
Value round_nearest_even(Value x) { return unary("stablehlo.round_nearest_even", x, kFloatKind); }
Value round_nearest_afz(Value x) { return unary("stablehlo.round_nearest_afz", x, kFloatKind); }
Value sign(Value x) { return unary("stablehlo.sign", x, kSignedKind | kInexactKinds); }
Value not_(Value x) { return unary("stablehlo.not", x, kBoolKind | kIntegerKinds); }
Value popcnt(Value x) { return unary("stablehlo.popcnt", x, kIntegerKinds); }
Value count_leading_zeros(Value x) {
  return unary("stablehlo.count_leading_zeros", x, kIntegerKinds);
}
Value is_finite(Value x) {
  return unary_to("stablehlo.is_finite", x, kFloatKind, ElementType::kPred);
}
Value real(Value x) { return unary_to("stablehlo.real", x, kInexactKinds, real_type(x.dtype())); }
Value imag(Value x) { return unary_to("stablehlo.imag", x, kInexactKinds, real_type(x.dtype())); }

Value erf(Value x) { return unary("chlo.erf", x, kFloatKind); }
Value erfc(Value x) { return unary("chlo.erfc", x, kFloatKind); }
Value erf_inv(Value x) { return unary("chlo.erf_inv", x, kFloatKind); }
Value lgamma(Value x) { return unary("chlo.lgamma", x, kFloatKind); }
Value digamma(Value x) { return unary("chlo.digamma", x, kFloatKind); }
Value acos(Value x) { return unary("chlo.acos", x, kInexactKinds); }
Value acosh(Value x) { return unary("chlo.acosh", x, kInexactKinds); }
Value asin(Value x) { return unary("chlo.asin", x, kInexactKinds); }
Value asinh(Value x) { return unary("chlo.asinh", x, kInexactKinds); }
Value atan(Value x) { return unary("chlo.atan", x, kInexactKinds); }
Value atanh(Value x) { return unary("chlo.atanh", x, kInexactKinds); }
Value sinh(Value x) { return unary("chlo.sinh", x, kInexactKinds); }
Value cosh(Value x) { return unary("chlo.cosh", x, kInexactKinds); }
Value bessel_i1e(Value x) { return unary("chlo.bessel_i1e", x, kFloatKind); }
Value is_inf(Value x) { return unary_to("chlo.is_inf", x, kFloatKind, ElementType::kPred); }
Value is_pos_inf(Value x) { return unary_to("chlo.is_pos_inf", x, kFloatKind, ElementType::kPred); }
Value is_neg_inf(Value x) { return unary_to("chlo.is_neg_inf", x, kFloatKind, ElementType::kPred); }
Value next_after(Value a, Value b) { return binary("chlo.next_after", a, b, kFloatKind); }
Value polygamma(Value a, Value b) { return binary("chlo.polygamma", a, b, kFloatKind); }
Value zeta(Value a, Value b) { return binary("chlo.zeta", a, b, kFloatKind); }

// On bool, add is "or" and multiply is "and", as the specification says.
Value add(Value a, Value b) { return binary("stablehlo.add", a, b, kBoolKind | kNumberKinds); }
Value subtract(Value a, Value b) { return binary("stablehlo.subtract", a, b, kNumberKinds); }
Value multiply(Value a, Value b) {
  return binary("stablehlo.multiply", a, b, kBoolKind | kNumberKinds);
}
Value divide(Value a, Value b) { return binary("stablehlo.divide", a, b, kNumberKinds); }
Value remainder(Value a, Value b) {
  return binary("stablehlo.remainder", a, b, kIntegerKinds | kFloatKind);
}
Value maximum(Value a, Value b) {
  return binary("stablehlo.maximum", a, b, kBoolKind | kIntegerKinds | kFloatKind);
}
Value minimum(Value a, Value b) {
  return binary("stablehlo.minimum", a, b, kBoolKind | kIntegerKinds | kFloatKind);
}
Value power(Value a, Value b) { return binary("stablehlo.power", a, b, kNumberKinds); }
Value atan2(Value a, Value b) { return binary("stablehlo.atan2", a, b, kInexactKinds); }
Value and_(Value a, Value b) { return binary("stablehlo.and", a, b, kBoolKind | kIntegerKinds); }
Value or_(Value a, Value b) { return binary("stablehlo.or", a, b, kBoolKind | kIntegerKinds); }
Value xor_(Value a, Value b) { return binary("stablehlo.xor", a, b, kBoolKind | kIntegerKinds); }
Value shift_left(Value a, Value b) { return binary("stablehlo.shift_left", a, b, kIntegerKinds); }
Value shift_right_arithmetic(Value a, Value b) {
  return binary("stablehlo.shift_right_arithmetic", a, b, kIntegerKinds);
}
Value shift_right_logical(Value a, Value b) {
  return binary("stablehlo.shift_right_logical", a, b, kIntegerKinds);
}

Value complex(Value re, Value im) {
  constexpr std::string_view kOp = "stablehlo.complex";
  check_same(kOp, re, im);
  if (re.dtype() != ElementType::kF32 && re.dtype() != ElementType::kF64) {
    fail(kOp, "expected f32 or f64 parts, got " + to_string(re.type()));
  }
  return re.builder().append1(kOp, {re, im}, "", {complex_type(re.dtype()), re.dims()});
}

Value compare(Value a, Value b, Direction direction) {
  constexpr std::string_view kOp = "stablehlo.compare";
  constexpr const char* kNames[] = {"EQ", "NE", "LT", "LE", "GT", "GE"};
  check_same(kOp, a, b);
  const ElementType type = a.dtype();
  if (is_complex(type) && direction != Direction::kEq && direction != Direction::kNe) {
    fail(kOp, "complex numbers have no order, got " + to_string(a.type()));
  }
  std::string attributes = "comparison_direction = #stablehlo<comparison_direction ";
  attributes += kNames[static_cast<int>(direction)];
  attributes += ">, compare_type = #stablehlo<comparison_type ";
  attributes += is_float(type) || is_complex(type) ? "FLOAT"
                : is_signed_int(type)              ? "SIGNED"
                                                   : "UNSIGNED";
  attributes += '>';
  return a.builder().append1(kOp, {a, b}, attributes, {ElementType::kPred, a.dims()});
}

Value select(Value pred, Value on_true, Value on_false) {
  constexpr std::string_view kOp = "stablehlo.select";
  check_same(kOp, on_true, on_false);
  if (!is_bool(pred.dtype()) || (pred.rank() != 0 && pred.dims() != on_true.dims())) {
    fail(kOp, "the predicate must be bool, 0-d or of the operands' shape, got " +
                  to_string(pred.type()) + " for operands " + to_string(on_true.type()));
  }
  return pred.builder().append1(kOp, {pred, on_true, on_false}, "", on_true.type());
}

Value clamp(Value min, Value operand, Value max) {
  constexpr std::string_view kOp = "stablehlo.clamp";
  check_kind(kOp, operand, kBoolKind | kIntegerKinds | kFloatKind);
  for (const Value bound : {min, max}) {
    if (bound.dtype() == operand.dtype() && (bound.rank() == 0 || bound.dims() == operand.dims())) {
      continue;
    }
    fail(kOp, "a bound must have the operand's element type and be 0-d or of its shape, got " +
                  to_string(bound.type()) + " for operand " + to_string(operand.type()));
  }
  return operand.builder().append1(kOp, {min, operand, max}, "", operand.type());
}

Value convert(Value x, ElementType target) {
  const ElementType source = x.dtype();
  if (source == target) return x;
  if (is_bool(target)) return ne(x, full_like(x, 0));
  if (is_complex(source) && !is_complex(target)) return convert(real(x), target);
  return x.builder().append1("stablehlo.convert", {x}, "", {target, x.dims()});
}

Value bitcast_convert(Value x, ElementType target) {
  constexpr std::string_view kOp = "stablehlo.bitcast_convert";
  const ElementType source = x.dtype();
  if (source == target) return x;
  const auto refuse = [&](const std::string& why) {
    fail(kOp, why + ", got " + to_string(x.type()) + " to " + std::string(name(target)));
  };
  if (is_bool(source) || is_bool(target)) refuse("bool has no bits to reinterpret; use convert()");
  if (is_complex(source) != is_complex(target)) {
    refuse("complex and real types do not mix; use real(), imag() and complex()");
  }
  const int64_t from = bit_width(source);
  const int64_t to = bit_width(target);
  Dims dims = x.dims();
  if (from > to) {
    dims.push_back(from / to);
  } else if (from < to) {
    if (dims.empty() || dims.back() != to / from) {
      refuse("the last dimension must be " + std::to_string(to / from));
    }
    dims.pop_back();
  }
  return x.builder().append1(kOp, {x}, "", {target, dims});
}

Value reduce_precision(Value x, int exponent_bits, int mantissa_bits) {
  constexpr std::string_view kOp = "stablehlo.reduce_precision";
  check_kind(kOp, x, kFloatKind);
  if (exponent_bits < 1 || mantissa_bits < 0) {
    fail(kOp, "expected at least one exponent bit and no negative mantissa bits, got " +
                  std::to_string(exponent_bits) + " and " + std::to_string(mantissa_bits));
  }
  return x.builder().append1(kOp, {x},
                             "exponent_bits = " + std::to_string(exponent_bits) +
                                 " : i32, mantissa_bits = " + std::to_string(mantissa_bits) +
                                 " : i32",
                             x.type());
}

}  // namespace torch_tpu::stablehlo
