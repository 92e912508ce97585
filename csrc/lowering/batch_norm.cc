// Batch norm under its many names. Statistics are per channel (dimension 1).
#include "lowering/expression.h"
#include "lowering/normalization.h"
#include "lowering/promotion.h"
#include "lowering/reduction.h"

namespace torch_tpu::lowering {

namespace sh = stablehlo;

namespace {

// The input in the type to compute in, and the dimensions that are not channels.
struct Input {
  Value x;
  Dims dims;

  explicit Input(const Call& call) : x(convert_halves(call.tensor("input"))) {
    if (!sh::is_float(x.dtype()) || x.rank() < 2) {
      throw Unsupported(call.op() + ": not a real floating point input with channels");
    }
    for (int64_t d = 0; d < x.rank(); ++d) {
      if (d != 1) dims.push_back(d);
    }
  }

  int64_t channels() const { return x.dim(1); }
  Value per_channel(Value v) const { return spread(v, x.dims(), dims); }
  Value of(const Call& call, std::string_view name) const {
    return sh::convert(call.tensor(name), x.dtype());
  }
};

Value inverse_deviation(const Call& call, Value variance) {
  const Value eps = sh::broadcast_to(call.number("eps", variance.dtype()), variance.dims());
  return sh::rsqrt(sh::add(variance, eps));
}

Value normalize(const Call& call, const Input& in, Value mean, Value invstd) {
  // One factor and one offset per channel: the big tensor is read once and multiplied once.
  Value scale = invstd;
  if (call.has("weight")) scale = sh::multiply(scale, in.of(call, "weight"));
  Value shift = sh::negate(sh::multiply(mean, scale));
  if (call.has("bias")) shift = sh::add(shift, in.of(call, "bias"));
  return sh::add(sh::multiply(in.x, in.per_channel(scale)), in.per_channel(shift));
}

struct BatchNorm {
  Value output, save_mean, save_invstd, running_mean, running_var;
};

// running = (1 - momentum) running + momentum observed
Value updated(const Call& call, const Input& in, std::string_view name, Value observed) {
  const Value running = in.of(call, name);
  const Value momentum = sh::broadcast_to(call.number("momentum", in.x.dtype()), running.dims());
  return sh::add(sh::multiply(sh::subtract(constant_like(running, 1), momentum), running),
                 sh::multiply(momentum, observed));
}

BatchNorm train(const Call& call) {
  const Input in(call);
  const Moments m = moments_over(in.x, in.dims);
  const Value invstd = inverse_deviation(call, m.variance);
  BatchNorm result{normalize(call, in, m.mean, invstd), m.mean, invstd, {}, {}};
  const auto count = static_cast<double>(reduced_size(in.x.dims(), in.dims));
  if (call.has("running_mean")) {
    result.running_mean = updated(call, in, "running_mean", m.mean);
  }
  if (call.has("running_var")) {
    const Value unbiased = sh::divide(sh::multiply(m.variance, constant_like(m.variance, count)),
                                      constant_like(m.variance, count - 1));
    result.running_var = updated(call, in, "running_var", unbiased);
  }
  return result;
}

BatchNorm evaluate(const Call& call) {
  const Input in(call);
  const Value mean = in.of(call, "running_mean");
  const Value invstd = inverse_deviation(call, in.of(call, "running_var"));
  BatchNorm result{normalize(call, in, mean, invstd), mean, invstd, {}, {}};
  // Nobody reads the saved statistics then: PyTorch's CPU leaves them empty, its meta kernels
  // say they are there.
  if (call.num_outputs() < 2 || call.output(1).dims == Dims{0}) {
    const TensorType none{in.x.dtype(), {0}};
    result.save_mean = result.save_invstd = sh::splat(call.builder(), none, 0.0);
  }
  return result;
}

Value no_reserve(const Call& call) {
  return sh::splat(call.builder(), TensorType{ElementType::kU8, {0}}, int64_t{0});
}

// (output, save_mean, save_invstd), then the running statistics, which are written in training.
Values native_batch_norm(Call& call) {
  const BatchNorm n = call.boolean("training") ? train(call) : evaluate(call);
  Values results, statistics;
  // A statistic that is not there has no place among the results.
  if (call.has("running_mean")) statistics.push_back(n.running_mean);
  if (call.has("running_var")) statistics.push_back(n.running_var);
  const bool into_out = call.overload() == "out";
  if (into_out) results = statistics;
  results.insert(results.end(), {n.output, n.save_mean, n.save_invstd});
  if (!into_out) results.insert(results.end(), statistics.begin(), statistics.end());
  return results;
}

// The schema says that the running statistics are written, and `out` comes after them.
Values legit(Call& call) {
  const BatchNorm n = call.boolean("training") ? train(call) : evaluate(call);
  if (!call.find("running_mean")) return {n.output, n.save_mean, n.save_invstd};
  if (call.overload() == "out") {
    return {n.running_mean, n.running_var, n.output, n.save_mean, n.save_invstd};
  }
  return {n.output, n.save_mean, n.save_invstd, n.running_mean, n.running_var};
}

Values legit_no_training(Call& call) {
  const BatchNorm n = evaluate(call);
  return {n.output, n.save_mean, n.save_invstd};
}

Values with_update(Call& call) {
  const BatchNorm n = train(call);
  if (call.overload() == "out") {
    return {n.running_mean, n.running_var, n.output, n.save_mean, n.save_invstd, no_reserve(call)};
  }
  return {n.output, n.save_mean, n.save_invstd, no_reserve(call), n.running_mean, n.running_var};
}

Values no_update(Call& call) {
  const bool have_statistics = call.has("running_mean") && call.has("running_var");
  const BatchNorm n = have_statistics ? evaluate(call) : train(call);
  return {n.output, n.save_mean, n.save_invstd, no_reserve(call)};
}

Values backward(const Call& call, bool training, std::string_view saved_deviation) {
  const Input in(call);
  const Value mean = in.of(call, training ? "save_mean" : "running_mean");
  const Value invstd =
      training ? in.of(call, saved_deviation) : inverse_deviation(call, in.of(call, "running_var"));
  const Value grad = in.of(call, "grad_out");
  const Value y = sh::multiply(sh::subtract(in.x, in.per_channel(mean)), in.per_channel(invstd));
  const Value grad_weight = sum_over(sh::multiply(grad, y), in.dims);
  const Value grad_bias = sum_over(grad, in.dims);

  const std::vector<bool> wanted = call.bools("output_mask");
  Values grads(3);
  if (wanted[0]) {
    Value scale = invstd;
    if (call.has("weight")) scale = sh::multiply(scale, in.of(call, "weight"));
    Value inner = grad;
    if (training) {
      const Value count =
          constant_like(grad_bias, static_cast<double>(reduced_size(in.x.dims(), in.dims)));
      const Value mean_grad = in.per_channel(sh::divide(grad_bias, count));
      const Value mean_grad_y = in.per_channel(sh::divide(grad_weight, count));
      inner = sh::subtract(sh::subtract(grad, mean_grad), sh::multiply(y, mean_grad_y));
    }
    grads[0] = sh::multiply(inner, in.per_channel(scale));
  }
  if (wanted[1]) grads[1] = grad_weight;
  if (wanted[2]) grads[2] = grad_bias;
  return grads;
}

Values native_batch_norm_backward(Call& call) {
  return backward(call, call.boolean("train"), "save_invstd");
}

Values batch_norm_backward(Call& call) {
  return backward(call, call.boolean("update"), "save_var");
}

}  // namespace

void register_batch_norm(Registry& r) {
  r.add("aten::native_batch_norm", native_batch_norm, {.mutates = {"running_mean", "running_var"}});
  r.add("aten::_native_batch_norm_legit", legit);
  r.add("aten::_native_batch_norm_legit_no_training", legit_no_training);
  r.add("aten::_batch_norm_with_update", with_update);
  r.add("aten::_batch_norm_with_update_functional", with_update);
  r.add("aten::_batch_norm_no_update", no_update);
  r.add("aten::native_batch_norm_backward", native_batch_norm_backward);
  r.add("aten::batch_norm_backward", batch_norm_backward);
}

}  // namespace torch_tpu::lowering
