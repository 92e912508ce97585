// Rounding to a quantized grid and back, for training with quantization in mind.
#include "lowering/expression.h"
#include "lowering/pointwise.h"
#include "lowering/promotion.h"

namespace torch_tpu::lowering {

namespace sh = stablehlo;

namespace {

// The quantized values as floats, and where they are inside the grid.
Values quantize(const Call& call, Value x, Value scale, Value zero_point) {
  const double low = static_cast<double>(call.integer("quant_min"));
  const double high = static_cast<double>(call.integer("quant_max"));
  const Value level = round_nearest_even(x * (1.0 / scale) + zero_point);
  const Value inside = (level >= low) & (level <= high);
  const Value held = minimum(maximum(level, constant_like(level, low)), constant_like(level, high));
  return {sh::convert((held - zero_point) * scale, call.tensor("self").dtype()), inside};
}

Value input(const Call& call) {
  const Value self = call.tensor("self");
  return sh::convert(self, compute_type(self.dtype()));
}

// One scale and zero point, as numbers or as tensors of one element.
Value parameter(const Call& call, std::string_view name, Value like) {
  const Value tensor =
      std::holds_alternative<TensorArgument>(*call.find(name)) ? call.tensor(name) : Value();
  const Value value = tensor ? sh::reshape(tensor, {}) : call.number(name, like.dtype());
  return as(value, like.dtype(), like.dims());
}

Values per_tensor_rule(Call& call) {
  const Value x = input(call);
  return quantize(call, x, parameter(call, "scale", x), parameter(call, "zero_point", x));
}

// As per_tensor_rule, with a switch in a tensor.
Values per_tensor_switched_rule(Call& call) {
  const Value x = input(call);
  const Values quantized = per_tensor_rule(call);
  const Value on =
      sh::broadcast_to(differs(sh::reshape(call.tensor("fake_quant_enabled"), {}), 0.0), x.dims());
  return {choose(on, quantized[0], call.tensor("self")), choose(on, quantized[1], 1.0)};
}

Values per_channel_rule(Call& call) {
  const Value x = input(call);
  const int64_t axis = wrap_dim(call.integer("axis"), x.rank());
  const auto along = [&](std::string_view name) {
    return sh::broadcast_in_dim(sh::convert(call.tensor(name), x.dtype()), x.dims(), {axis});
  };
  return quantize(call, x, along("scale"), along("zero_point"));
}

}  // namespace

void register_fake_quantize(Registry& r) {
  r.add("aten::fake_quantize_per_tensor_affine_cachemask", per_tensor_rule);
  r.add("aten::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams",
        per_tensor_switched_rule);
  r.add("aten::fake_quantize_per_channel_affine_cachemask", per_channel_rule);
}

}  // namespace torch_tpu::lowering
