#include <algorithm>

#include "lowering/expression.h"
#include "lowering/families.h"
#include "lowering/pointwise.h"
#include "lowering/promotion.h"

namespace torch_tpu::lowering {

namespace sh = stablehlo;

namespace {

// --- One value ----------------------------------------------------------------------------------

Values fill(Call& call) {
  const Value self = call.tensor("self");
  return {as(call.number("value", self.dtype()), self.dtype(), self.dims())};
}

Values zero(Call& call) {
  const Value self = call.tensor("self");
  return {sh::splat(call.builder(), self.type(), 0)};
}

Values full(Call& call) {
  const TensorType& type = call.output();
  return {as(call.number("fill_value", type.dtype), type.dtype, type.dims)};
}

Values scalar_tensor(Call& call) { return {call.number("s", call.output().dtype)}; }

// The value of ones(), zeros() and their kin.
Rule constant(int value) {
  return
      [value](Call& call) -> Values { return {sh::splat(call.builder(), call.output(), value)}; };
}

// --- Ranges -------------------------------------------------------------------------------------

// The type PyTorch's CPU kernels step in.
ElementType range_type(ElementType dtype) {
  if (sh::is_integer(dtype) || sh::is_bool(dtype)) return ElementType::kS64;
  return dtype == ElementType::kF32 ? ElementType::kF64 : compute_type(dtype);
}

// Whether start + i is exact in the result's own type for all i.
bool counts_exactly(const Call& call, const TensorType& type) {
  const bool from_zero = !call.has("start") || call.is_known("start", 0);
  const bool by_one = !call.has("step") || call.is_known("step", 1);
  if (!from_zero || !by_one) return false;
  if (sh::is_integer(type.dtype)) return true;
  return type.dtype == ElementType::kF64 ||
         (type.dtype == ElementType::kF32 && type.numel() <= (1 << 24));
}

Values range(Call& call) {
  const TensorType& type = call.output();
  if (sh::is_complex(type.dtype)) throw Unsupported(call.op() + ": complex numbers");
  if (type.numel() == 0) return {sh::splat(call.builder(), type, 0)};
  if (counts_exactly(call, type)) return {sh::iota(call.builder(), type, 0)};
  const ElementType step_type = range_type(type.dtype);
  const Value i = sh::iota(call.builder(), {step_type, type.dims}, 0);
  const Value start = as(call.number_or("start", 0, step_type), step_type, type.dims);
  if (!call.has("step") || call.is_known("step", 1)) return {start + i};
  return {start + as(call.number("step", step_type), step_type, type.dims) * i};
}

// A number, or a 0-d tensor in its place, in the result's precision.
Value endpoint(const Call& call, std::string_view name, ElementType dtype, ElementType compute) {
  return sh::convert(call.number(name, dtype), compute);
}

// `steps` values from start to end. Both halves count from their own end, so both ends are exact.
Value evenly_spaced(const Call& call, const TensorType& type, ElementType compute) {
  const int64_t steps = type.numel();
  const Value start = endpoint(call, "start", type.dtype, compute);
  if (steps == 1) return sh::reshape(start, type.dims);
  const Value end = endpoint(call, "end", type.dtype, compute);
  // A compiler multiplies by the reciprocal of a constant, which can end below a whole number.
  const Value count = sh::optimization_barrier({constant_like(start, steps - 1.0)})[0];
  Value step = (end - start) / count;
  // PyTorch computes in the result's dtype: what is left where a sum cancels depends on it.
  const auto rounded = [&](Value v) {
    return sh::is_integer(type.dtype) ? v : rounded_to(v, type.dtype);
  };
  step = rounded(step);
  const Value i = sh::iota(call.builder(), {ElementType::kS64, type.dims}, 0);
  const auto wide = [&](Value v) { return sh::broadcast_to(v, type.dims); };
  const auto distance = [&](Value count) {
    return rounded(wide(step) * sh::convert(count, compute));
  };
  const Value up = wide(start) + distance(i);
  const Value down = wide(end) - distance(static_cast<double>(steps - 1) - i);
  return sh::select(i < static_cast<double>(steps / 2), up, down);
}

ElementType spacing_type(ElementType dtype) {
  return sh::is_integer(dtype) || sh::is_bool(dtype) ? ElementType::kF64 : compute_type(dtype);
}

// In the words of PyTorch's kernels, which have no bool.
void require_steps(const Call& call, const TensorType& type) {
  if (sh::is_bool(type.dtype) && type.numel() > 1) {
    throw InvalidArgument('"' + call.op().substr(6) + "_cpu\" not implemented for 'Bool'",
                          InvalidArgument::Kind::kNotImplemented);
  }
}

Values linspace(Call& call) {
  const TensorType& type = call.output();
  require_steps(call, type);
  if (type.numel() == 0) return {sh::splat(call.builder(), type, 0)};
  return {evenly_spaced(call, type, spacing_type(type.dtype))};
}

Values logspace(Call& call) {
  const TensorType& type = call.output();
  require_steps(call, type);
  if (type.numel() == 0) return {sh::splat(call.builder(), type, 0)};
  const ElementType compute = spacing_type(type.dtype);
  // A single exponent is not rounded to the result's dtype.
  const Value exponents = type.numel() == 1 ? as(call.number("start", compute), compute, type.dims)
                                            : evenly_spaced(call, type, compute);
  const Value base = as(call.number_or("base", 10, compute), compute, type.dims);
  return {power_of(base, exponents)};
}

Values eye(Call& call) {
  const int64_t rows = call.integer("n"), columns = call.integer_or("m", rows);
  const TensorType positions{ElementType::kS32, {rows, columns}};
  if (positions.numel() == 0) return {sh::splat(call.builder(), positions, 0)};
  return {equals(sh::iota(call.builder(), positions, 0), sh::iota(call.builder(), positions, 1))};
}

}  // namespace

void register_creation(Registry& r) {
  r.add("aten::fill", fill);
  r.add("aten::zero", zero);
  for (const char* op : {"aten::full", "aten::full_like", "aten::new_full"}) r.add(op, full);
  for (const char* op : {"aten::zeros", "aten::zeros_like", "aten::new_zeros"}) {
    r.add(op, constant(0));
  }
  for (const char* op : {"aten::ones", "aten::ones_like", "aten::new_ones"}) {
    r.add(op, constant(1));
  }
  r.add("aten::scalar_tensor", scalar_tensor);
  r.add("aten::arange", range);
  r.add("aten::range", range);
  r.add("aten::linspace", linspace);
  r.add("aten::logspace", logspace);
  r.add("aten::eye", eye);
}

}  // namespace torch_tpu::lowering
