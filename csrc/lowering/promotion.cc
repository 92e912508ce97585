#include "lowering/promotion.h"

#include <algorithm>

namespace torch_tpu::lowering {

namespace sh = stablehlo;

namespace {

int category(ElementType t) {
  if (sh::is_bool(t)) return 0;
  if (sh::is_integer(t)) return 1;
  if (sh::is_float(t)) return 2;
  return 3;
}

ElementType promote_integers(ElementType a, ElementType b) {
  const bool ua = sh::is_unsigned_int(a), ub = sh::is_unsigned_int(b);
  const int wa = sh::bit_width(a), wb = sh::bit_width(b);
  if (ua == ub) return wa >= wb ? a : b;
  const ElementType s = ua ? b : a;
  const int ws = ua ? wb : wa, wu = ua ? wa : wb;
  if (ws > wu) return s;
  // Only uint8 takes part in promotion with signed types of its width in PyTorch.
  switch (wu) {
    case 8:
      return ElementType::kS16;
    case 16:
      return ElementType::kS32;
    default:
      return ElementType::kS64;
  }
}

ElementType promote_floats(ElementType a, ElementType b) {
  const int wa = sh::bit_width(a), wb = sh::bit_width(b);
  if (wa != wb) return wa > wb ? a : b;
  return ElementType::kF32;  // float16 with bfloat16
}

thread_local ElementType t_default_float = ElementType::kF32;

// The dtype of Python numbers of `type`'s category.
ElementType default_like(ElementType type) {
  if (sh::is_float(type)) return t_default_float;
  if (!sh::is_complex(type)) return type;
  return t_default_float == ElementType::kF64 ? ElementType::kC128 : ElementType::kC64;
}

}  // namespace

DefaultFloat::DefaultFloat(ElementType type) : previous_(t_default_float) {
  t_default_float = type;
}
DefaultFloat::~DefaultFloat() { t_default_float = previous_; }
ElementType DefaultFloat::current() { return t_default_float; }

ElementType promote_types(ElementType a, ElementType b) {
  if (a == b) return a;
  const int ca = category(a), cb = category(b);
  if (ca == cb) {
    switch (ca) {
      case 1:
        return promote_integers(a, b);
      case 2:
        return promote_floats(a, b);
      case 3:
        return ElementType::kC128;
      default:
        return a;
    }
  }
  const ElementType high = ca > cb ? a : b, low = ca > cb ? b : a;
  if (std::max(ca, cb) == 3 && std::min(ca, cb) == 2) {
    return low == ElementType::kF64 ? ElementType::kC128 : high;
  }
  return high;
}

ElementType result_type(const Call& call, std::initializer_list<std::string_view> names) {
  // Strongest type seen per priority: tensors with dimensions, 0-d tensors, numbers.
  std::optional<ElementType> dim, zero, wrapped;
  const auto join = [](std::optional<ElementType>& into, ElementType t) {
    into = into ? promote_types(*into, t) : t;
  };
  for (const std::string_view name : names) {
    if (!call.has(name)) continue;
    const Argument& arg = *call.find(name);
    if (const auto* t = std::get_if<TensorArgument>(&arg)) {
      const ElementType dtype = t->value.dtype();
      if (t->wrapped_number) {
        join(wrapped, default_like(dtype));
      } else {
        join(t->value.rank() == 0 ? zero : dim, dtype);
      }
    } else {
      join(wrapped, default_like(call.number_type(name)));
    }
  }
  const auto combine = [](std::optional<ElementType> higher, std::optional<ElementType> lower) {
    if (!higher) return lower;
    if (!lower || category(*lower) <= category(*higher)) return higher;
    // A complex scalar takes a real tensor's precision.
    if (sh::is_float(*higher)) {
      return std::optional(*higher == ElementType::kF64 ? ElementType::kC128 : ElementType::kC64);
    }
    return std::optional(promote_types(*higher, *lower));
  };
  const std::optional<ElementType> result = combine(dim, combine(zero, wrapped));
  if (!result) throw Unsupported(call.op() + ": no argument has a type");
  return *result;
}

ElementType to_floating(ElementType type) {
  return sh::is_float(type) || sh::is_complex(type) ? type : t_default_float;
}

ElementType compute_type(ElementType type) {
  return sh::is_float(type) && sh::bit_width(type) < 32 ? ElementType::kF32 : type;
}

Value cast(Value value, ElementType dtype) {
  const ElementType from = value.dtype();
  if (!sh::is_float(from)) {
    if (dtype != ElementType::kF8E4M3FN || from == dtype || !sh::is_integer(from)) {
      return sh::convert(value, dtype);
    }
    return cast(sh::convert(value, ElementType::kF32), dtype);
  }
  if (sh::is_integer(dtype) && !sh::is_bool(dtype)) {
    const int width = sh::bit_width(dtype);
    if (width < 32) return sh::convert(sh::convert(value, ElementType::kS32), dtype);
    if (dtype == ElementType::kU32) {
      return sh::convert(sh::convert(value, ElementType::kS64), dtype);
    }
  }
  if (dtype == ElementType::kF8E4M3FN && sh::bit_width(from) > 8) {
    constexpr double kLargest = 448;
    const Value wide = sh::convert(value, compute_type(from));
    return sh::convert(sh::clamp(sh::splat(wide.builder(), {wide.dtype(), {}}, -kLargest), wide,
                                 sh::splat(wide.builder(), {wide.dtype(), {}}, kLargest)),
                       dtype);
  }
  return sh::convert(value, dtype);
}

Value rounded_to(Value value, ElementType type) {
  if (type == ElementType::kF16) return sh::reduce_precision(value, 5, 10);
  if (type == ElementType::kBF16) return sh::reduce_precision(value, 8, 7);
  return sh::convert(sh::convert(value, type), value.dtype());
}

Value as(Value value, ElementType dtype, const Dims& dims) {
  return sh::broadcast_to(sh::convert(value, dtype), dims);
}

Values broadcast_arguments(const Call& call, std::initializer_list<std::string_view> names,
                           ElementType dtype) {
  Values values;
  std::vector<Dims> shapes;
  for (const std::string_view name : names) {
    const Argument* arg = call.find(name);
    const Value v = arg && std::holds_alternative<TensorArgument>(*arg)
                        ? sh::convert(call.tensor(name), dtype)
                        : call.number(name, dtype);
    values.push_back(v);
    shapes.push_back(v.dims());
  }
  const Dims dims = sh::broadcast_shapes(shapes);
  for (Value& v : values) v = sh::broadcast_to(v, dims);
  return values;
}

}  // namespace torch_tpu::lowering
