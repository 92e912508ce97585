// Layer norm and group norm: statistics per sample.
#include "lowering/normalization.h"
#include "lowering/promotion.h"
#include "lowering/reduction.h"

namespace torch_tpu::lowering {

namespace sh = stablehlo;

namespace {

Dims range(int64_t from, int64_t to) {
  Dims dims;
  for (int64_t d = from; d < to; ++d) dims.push_back(d);
  return dims;
}

Value floating(const Call& call, std::string_view name) {
  const Value x = convert_halves(call.tensor(name));
  if (!sh::is_float(x.dtype())) throw Unsupported(call.op() + ": not real floating point");
  return x;
}

// `x` minus mean, times rstd, both without the reduced dimensions.
Value normalized(Value x, Value mean, Value rstd, const Dims& dims) {
  return sh::multiply(sh::subtract(x, spread(mean, x.dims(), dims)), spread(rstd, x.dims(), dims));
}

Value inverse_deviation(const Call& call, Value variance) {
  const Value eps = sh::broadcast_to(call.number("eps", variance.dtype()), variance.dims());
  return sh::rsqrt(sh::add(variance, eps));
}

// d loss / d x when y = normalized(x): rstd (g - mean(g) - y mean(g y)).
Value normalized_backward(Value grad, Value y, Value rstd, const Dims& dims) {
  const Dims& shape = grad.dims();
  const Value mean_grad = spread(mean_over(grad, dims), shape, dims);
  const Value mean_grad_y = spread(mean_over(sh::multiply(grad, y), dims), shape, dims);
  const Value inner = sh::subtract(sh::subtract(grad, mean_grad), sh::multiply(y, mean_grad_y));
  return sh::multiply(inner, spread(rstd, shape, dims));
}

Values layer_norm(Call& call) {
  const Value x = floating(call, "input");
  const int64_t axis = x.rank() - static_cast<int64_t>(call.ints("normalized_shape").size());
  const Dims dims = range(axis, x.rank());
  const Moments m = moments_over(x, dims);
  const Value rstd = inverse_deviation(call, m.variance);
  Value y = normalized(x, m.mean, rstd, dims);
  const auto parameter = [&](std::string_view name) {
    return as(call.tensor(name), x.dtype(), x.dims());
  };
  if (call.has("weight")) y = sh::multiply(y, parameter("weight"));
  if (call.has("bias")) y = sh::add(y, parameter("bias"));
  return {y, keep_dims(m.mean, x.dims(), dims), keep_dims(rstd, x.dims(), dims)};
}

Values layer_norm_backward(Call& call) {
  const Value x = floating(call, "input");
  const int64_t axis = x.rank() - static_cast<int64_t>(call.ints("normalized_shape").size());
  const Dims outer = range(0, axis), inner = range(axis, x.rank());
  const Value grad = sh::convert(call.tensor("grad_out"), x.dtype());
  const Dims stat_dims(x.dims().begin(), x.dims().begin() + axis);
  const auto statistic = [&](std::string_view name) {
    return sh::reshape(sh::convert(call.tensor(name), x.dtype()), stat_dims);
  };
  const Value rstd = statistic("rstd");
  const Value y = normalized(x, statistic("mean"), rstd, inner);
  const std::vector<bool> wanted = call.bools("output_mask");
  Values grads(3);
  if (wanted[0]) {
    const Value g = call.has("weight")
                        ? sh::multiply(grad, as(call.tensor("weight"), x.dtype(), x.dims()))
                        : grad;
    grads[0] = normalized_backward(g, y, rstd, inner);
  }
  if (wanted[1] && call.has("weight")) grads[1] = sum_over(sh::multiply(grad, y), outer);
  if (wanted[2] && call.has("bias")) grads[2] = sum_over(grad, outer);
  return grads;
}

// Group norm sees its input as [N, groups, channels of a group, positions].
struct Grouped {
  Dims shape;
  explicit Grouped(const Call& call)
      : shape{call.integer("N"), call.integer("group"), call.integer("C") / call.integer("group"),
              call.integer("HxW")} {}

  Value of(const Call& call, std::string_view name, ElementType dtype) const {
    return sh::reshape(sh::convert(call.tensor(name), dtype), shape);
  }
  // A tensor with one number per channel.
  Value per_channel(const Call& call, std::string_view name, ElementType dtype) const {
    const Value v = sh::reshape(sh::convert(call.tensor(name), dtype), {shape[1], shape[2]});
    return spread(v, shape, {0, 3});
  }
};

Values group_norm(Call& call) {
  const Value input = floating(call, "input");
  const Grouped grouped(call);
  const Value x = grouped.of(call, "input", input.dtype());
  const Dims dims{2, 3};
  const Moments m = moments_over(x, dims);
  const Value rstd = inverse_deviation(call, m.variance);
  Value y = normalized(x, m.mean, rstd, dims);
  if (call.has("weight")) y = sh::multiply(y, grouped.per_channel(call, "weight", x.dtype()));
  if (call.has("bias")) y = sh::add(y, grouped.per_channel(call, "bias", x.dtype()));
  return {sh::reshape(y, input.dims()), m.mean, rstd};
}

Values group_norm_backward(Call& call) {
  const Value input = floating(call, "input");
  const Grouped grouped(call);
  const ElementType t = input.dtype();
  const Value x = grouped.of(call, "input", t);
  const Value grad = grouped.of(call, "grad_out", t);
  const Dims dims{2, 3};
  const Value rstd = sh::convert(call.tensor("rstd"), t);
  const Value y = normalized(x, sh::convert(call.tensor("mean"), t), rstd, dims);
  const std::vector<bool> wanted = call.bools("output_mask");
  const Dims channels{call.integer("C")};
  Values grads(3);
  if (wanted[0]) {
    const Value g =
        call.has("weight") ? sh::multiply(grad, grouped.per_channel(call, "weight", t)) : grad;
    grads[0] = sh::reshape(normalized_backward(g, y, rstd, dims), input.dims());
  }
  if (wanted[1]) grads[1] = sh::reshape(sum_over(sh::multiply(grad, y), {0, 3}), channels);
  if (wanted[2]) grads[2] = sh::reshape(sum_over(grad, {0, 3}), channels);
  return grads;
}

}  // namespace

void register_layer_norm(Registry& r) {
  r.add("aten::native_layer_norm", layer_norm);
  r.add("aten::native_layer_norm_backward", layer_norm_backward);
  r.add("aten::native_group_norm", group_norm);
  r.add("aten::native_group_norm_backward", group_norm_backward);
}

}  // namespace torch_tpu::lowering
