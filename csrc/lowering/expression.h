// Arithmetic on values written as formulas: `x * logistic(x)`, `1.0 - y * y`.
// Operands have one type; a C++ number becomes a constant of the other operand's type.
#pragma once

#include <cstdint>

#include "lowering/call.h"

namespace torch_tpu::lowering {

// `number` in every element of a tensor like `like`, whatever its element type.
inline Value constant_like(Value like, double number) {
  const ElementType type = like.dtype();
  if (stablehlo::is_complex(type)) {
    return stablehlo::full_like(like, std::complex<double>(number, 0.0));
  }
  if (stablehlo::is_bool(type)) return stablehlo::full_like(like, number != 0.0);
  if (stablehlo::is_float(type)) return stablehlo::full_like(like, number);
  return stablehlo::full_like(like, static_cast<int64_t>(number));
}

inline Value operator-(Value a) { return stablehlo::negate(a); }
inline Value operator+(Value a, Value b) { return stablehlo::add(a, b); }
inline Value operator-(Value a, Value b) { return stablehlo::subtract(a, b); }
inline Value operator*(Value a, Value b) { return stablehlo::multiply(a, b); }
inline Value operator/(Value a, Value b) { return stablehlo::divide(a, b); }
inline Value operator+(Value a, double b) { return a + constant_like(a, b); }
inline Value operator-(Value a, double b) { return a - constant_like(a, b); }
inline Value operator*(Value a, double b) { return a * constant_like(a, b); }
inline Value operator/(Value a, double b) { return a / constant_like(a, b); }
inline Value operator+(double a, Value b) { return constant_like(b, a) + b; }
inline Value operator-(double a, Value b) { return constant_like(b, a) - b; }
inline Value operator*(double a, Value b) { return constant_like(b, a) * b; }
inline Value operator/(double a, Value b) { return constant_like(b, a) / b; }

// Predicates: tensors of bool. (Negation is not_(): `!value` asks whether a handle is empty.)
inline Value operator<(Value a, Value b) { return stablehlo::lt(a, b); }
inline Value operator<=(Value a, Value b) { return stablehlo::le(a, b); }
inline Value operator>(Value a, Value b) { return stablehlo::gt(a, b); }
inline Value operator>=(Value a, Value b) { return stablehlo::ge(a, b); }
inline Value operator<(Value a, double b) { return a < constant_like(a, b); }
inline Value operator<=(Value a, double b) { return a <= constant_like(a, b); }
inline Value operator>(Value a, double b) { return a > constant_like(a, b); }
inline Value operator>=(Value a, double b) { return a >= constant_like(a, b); }
inline Value operator&(Value a, Value b) { return stablehlo::and_(a, b); }
inline Value operator|(Value a, Value b) { return stablehlo::or_(a, b); }
// == compares handles, so equality of elements has names.
inline Value equals(Value a, Value b) { return stablehlo::eq(a, b); }
inline Value equals(Value a, double b) { return stablehlo::eq(a, constant_like(a, b)); }
inline Value differs(Value a, Value b) { return stablehlo::ne(a, b); }
inline Value differs(Value a, double b) { return stablehlo::ne(a, constant_like(a, b)); }
inline Value is_nan(Value a) { return stablehlo::ne(a, a); }

// pred ? a : b, elementwise.
inline Value choose(Value pred, Value a, Value b) { return stablehlo::select(pred, a, b); }
inline Value choose(Value pred, double a, Value b) {
  return stablehlo::select(pred, constant_like(b, a), b);
}
inline Value choose(Value pred, Value a, double b) {
  return stablehlo::select(pred, a, constant_like(a, b));
}

}  // namespace torch_tpu::lowering
