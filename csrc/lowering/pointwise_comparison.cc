// Comparisons, logic, bits, and choosing between values.
#include "lowering/expression.h"
#include "lowering/pointwise.h"
#include "lowering/promotion.h"

namespace torch_tpu::lowering {

namespace sh = stablehlo;

Value sign_bit(Value x) {
  const ElementType type = x.dtype();
  if (sh::is_bool(type) || sh::is_unsigned_int(type)) {
    return sh::splat(x.builder(), {ElementType::kPred, x.dims()}, false);
  }
  if (!sh::is_float(type)) return x < 0.0;
  const Value raw = sh::bitcast_convert(x, sh::bits_type(type));
  const Value top = sh::shift_right_logical(raw, constant_like(raw, sh::bit_width(type) - 1));
  return differs(top, 0.0);
}

namespace {

using Binary = Value (*)(Value, Value);
using Unary = Value (*)(Value);

struct BinaryEntry {
  const char* op;
  Binary function;
};

constexpr BinaryEntry kComparisons[] = {
    {"aten::eq", sh::eq}, {"aten::ne", sh::ne}, {"aten::lt", sh::lt},
    {"aten::le", sh::le}, {"aten::gt", sh::gt}, {"aten::ge", sh::ge},
};

constexpr BinaryEntry kLogical[] = {
    {"aten::logical_and", sh::and_},
    {"aten::logical_or", sh::or_},
    {"aten::logical_xor", sh::xor_},
};

constexpr BinaryEntry kBitwise[] = {
    {"aten::bitwise_and", sh::and_}, {"aten::bitwise_or", sh::or_}, {"aten::bitwise_xor", sh::xor_},
    {"aten::__and__", sh::and_},     {"aten::__or__", sh::or_},     {"aten::__xor__", sh::xor_},
    {"aten::__iand__", sh::and_},    {"aten::__ior__", sh::or_},    {"aten::__ixor__", sh::xor_},
};

// Shifts by the width or more (a negative count included) push every bit out.
Value shift_left(Value a, Value b) {
  const Value in_range = (b >= 0.0) & (b < static_cast<double>(sh::bit_width(a.dtype())));
  return choose(in_range, sh::shift_left(a, choose(in_range, b, 0.0)), 0.0);
}

Value shift_right(Value a, Value b) {
  const double last = sh::bit_width(a.dtype()) - 1;
  const Value in_range = (b >= 0.0) & (b <= last);
  if (sh::is_unsigned_int(a.dtype())) {
    return choose(in_range, sh::shift_right_logical(a, choose(in_range, b, 0.0)), 0.0);
  }
  return sh::shift_right_arithmetic(a, choose(in_range, b, last));
}

constexpr BinaryEntry kShifts[] = {
    {"aten::bitwise_left_shift", shift_left}, {"aten::__lshift__", shift_left},
    {"aten::__ilshift__", shift_left},        {"aten::bitwise_right_shift", shift_right},
    {"aten::__rshift__", shift_right},        {"aten::__irshift__", shift_right},
};

// What a test on infinities or NaN says of types that have none is false.
struct TestEntry {
  const char* op;
  Unary function;
};

Value complex_or(Value x, Unary test) { return test(sh::real(x)) | test(sh::imag(x)); }

constexpr TestEntry kTests[] = {
    {"aten::isnan", is_nan},
    {"aten::isinf", sh::is_inf},
    {"aten::isposinf", sh::is_pos_inf},
    {"aten::isneginf", sh::is_neg_inf},
};

Values where_rule(Call& call) {
  if (!call.has("self")) throw Unsupported("aten::where: the form that lists indices");
  const Values v =
      broadcast_arguments(call, {"self", "other"}, result_type(call, {"self", "other"}));
  const Value condition = sh::convert(call.tensor("condition"), ElementType::kPred);
  const Dims dims = sh::broadcast_shapes({condition.dims(), v[0].dims()});
  return {sh::select(sh::broadcast_to(condition, dims), sh::broadcast_to(v[0], dims),
                     sh::broadcast_to(v[1], dims))};
}

Values masked_fill_rule(Call& call) {
  const Value self = call.tensor("self");
  const Value mask = sh::convert(call.tensor("mask"), ElementType::kPred);
  const Value fill = call.number("value", self.dtype());
  const Dims dims = sh::broadcast_shapes({self.dims(), mask.dims()});
  return {sh::select(sh::broadcast_to(mask, dims), sh::broadcast_to(fill, dims),
                     sh::broadcast_to(self, dims))};
}

}  // namespace

void register_comparison(Registry& r) {
  for (const BinaryEntry& entry : kComparisons) {
    r.add(entry.op, [entry](Call& call) -> Values {
      const ElementType type = result_type(call, {"self", "other"});
      const Values v = broadcast_arguments(call, {"self", "other"}, type);
      return {entry.function(v[0], v[1])};
    });
  }
  for (const BinaryEntry& entry : kLogical) {
    r.add(entry.op, [entry](Call& call) -> Values {
      const Values v = broadcast_arguments(call, {"self", "other"}, ElementType::kPred);
      return {entry.function(v[0], v[1])};
    });
  }
  for (const BinaryEntry& entry : kBitwise) {
    r.add(entry.op, [entry](Call& call) -> Values {
      const ElementType type = result_type(call, {"self", "other"});
      if (!sh::is_integer(type) && !sh::is_bool(type)) {
        throw InvalidArgument(call.op() + ": expected integers or bools",
                              InvalidArgument::Kind::kNotImplemented);
      }
      const Values v = broadcast_arguments(call, {"self", "other"}, type);
      return {entry.function(v[0], v[1])};
    });
  }
  for (const BinaryEntry& entry : kShifts) {
    r.add(entry.op, [entry](Call& call) -> Values {
      const ElementType type = result_type(call, {"self", "other"});
      if (!sh::is_integer(type)) throw Unsupported(call.op() + ": shifts of floats or bools");
      const Values v = broadcast_arguments(call, {"self", "other"}, type);
      return {entry.function(v[0], v[1])};
    });
  }
  for (const TestEntry& entry : kTests) {
    r.add(entry.op, [entry](Call& call) -> Values {
      const Value x = call.tensor("self");
      if (sh::is_complex(x.dtype())) return {complex_or(x, entry.function)};
      if (sh::is_float(x.dtype())) return {entry.function(x)};
      return {sh::splat(call.builder(), {ElementType::kPred, x.dims()}, false)};
    });
  }
  r.add("aten::signbit", [](Call& call) -> Values { return {sign_bit(call.tensor("self"))}; });
  r.add("aten::logical_not", [](Call& call) -> Values {
    return {sh::not_(sh::convert(call.tensor("self"), ElementType::kPred))};
  });
  r.add("aten::bitwise_not", [](Call& call) -> Values { return {sh::not_(call.tensor("self"))}; });
  r.add("aten::where", where_rule);
  r.add("aten::masked_fill", masked_fill_rule);
}

}  // namespace torch_tpu::lowering
