// Losses of each element on its own, and their derivatives.
#include "lowering/loss.h"

#include "lowering/expression.h"
#include "lowering/families.h"
#include "lowering/promotion.h"

namespace torch_tpu::lowering {

namespace sh = stablehlo;

LossReduction loss_reduction(const Call& call) {
  return static_cast<LossReduction>(call.integer_or("reduction", 1));
}

Value reduce_loss(Value losses, LossReduction reduction) {
  if (reduction == LossReduction::kNone) return losses;
  const Value sum = sh::reduce_sum(losses, wrap_dims({}, losses.rank()));
  return reduction == LossReduction::kMean ? sum / static_cast<double>(losses.numel()) : sum;
}

double loss_count(Value losses, LossReduction reduction) {
  return reduction == LossReduction::kMean ? static_cast<double>(losses.numel()) : 1.0;
}

namespace {

using Names = std::initializer_list<std::string_view>;

Values inputs(const Call& call, Names names) {
  return broadcast_arguments(call, names, compute_type(result_type(call, names)));
}

Value number(const Call& call, std::string_view name, Value like) {
  return sh::broadcast_to(call.number(name, like.dtype()), like.dims());
}

// The optional rescaling of each element.
Value weighted(const Call& call, Value losses) {
  const Value weight = call.tensor_or_empty("weight");
  return weight ? losses * as(weight, losses.dtype(), losses.dims()) : losses;
}

Value log_sigmoid(Value x) {
  return minimum(x, constant_like(x, 0.0)) - log_plus_one(exponential(-abs(x)));
}

// --- The losses ---------------------------------------------------------------------------------

Value mse(const Call&, Value x, Value t) { return (x - t) * (x - t); }

Value mse_slope(const Call&, Value x, Value t) { return 2.0 * (x - t); }

Value smooth_l1(const Call& call, Value x, Value t) {
  const Value z = abs(x - t), beta = number(call, "beta", x);
  return choose(z < beta, 0.5 * z * z / beta, z - 0.5 * beta);
}

Value smooth_l1_slope(const Call& call, Value x, Value t) {
  const Value d = x - t, beta = number(call, "beta", x);
  return choose(d <= -beta, -1.0, choose(d >= beta, 1.0, d / beta));
}

Value huber(const Call& call, Value x, Value t) {
  const Value z = abs(x - t), delta = number(call, "delta", x);
  return choose(z <= delta, 0.5 * z * z, delta * (z - 0.5 * delta));
}

Value huber_slope(const Call& call, Value x, Value t) {
  const Value delta = number(call, "delta", x);
  return minimum(maximum(x - t, -delta), delta);
}

// Logarithms are held above -100, so that a certain and wrong prediction costs a finite loss.
Value binary_cross_entropy(const Call& call, Value x, Value t) {
  const Value floor = constant_like(x, -100.0);
  const Value losses = (t - 1.0) * maximum(log_plus_one(-x), floor) - t * maximum(log(x), floor);
  return weighted(call, losses);
}

Value binary_cross_entropy_slope(const Call& call, Value x, Value t) {
  return weighted(call, (x - t) / maximum((1.0 - x) * x, constant_like(x, 1e-12)));
}

Value binary_cross_entropy_with_logits(const Call& call, Value x, Value t) {
  const Value positive = call.tensor_or_empty("pos_weight");
  if (!positive) return weighted(call, (1.0 - t) * x - log_sigmoid(x));
  const Value balance = 1.0 + (as(positive, x.dtype(), x.dims()) - 1.0) * t;
  return weighted(call, (1.0 - t) * x - balance * log_sigmoid(x));
}

Value soft_margin(const Call&, Value x, Value t) { return log_plus_one(exponential(-t * x)); }

Value soft_margin_slope(const Call&, Value x, Value t) { return -t * logistic(-t * x); }

struct LossEntry {
  const char* op;
  Value (*function)(const Call&, Value x, Value target);
};

constexpr LossEntry kLosses[] = {
    {"aten::mse_loss", mse},
    {"aten::smooth_l1_loss", smooth_l1},
    {"aten::huber_loss", huber},
    {"aten::binary_cross_entropy", binary_cross_entropy},
    {"aten::binary_cross_entropy_with_logits", binary_cross_entropy_with_logits},
    {"aten::soft_margin_loss", soft_margin},
};

// The derivative by the input of each element's loss.
constexpr LossEntry kSlopes[] = {
    {"aten::mse_loss_backward", mse_slope},
    {"aten::smooth_l1_loss_backward", smooth_l1_slope},
    {"aten::huber_loss_backward", huber_slope},
    {"aten::binary_cross_entropy_backward", binary_cross_entropy_slope},
    {"aten::soft_margin_loss_backward", soft_margin_slope},
};

}  // namespace

void register_elementwise_losses(Registry& r) {
  for (const LossEntry& entry : kLosses) {
    r.add(entry.op, [entry](Call& call) -> Values {
      const Values v = inputs(call, {"self", "target"});
      return {reduce_loss(entry.function(call, v[0], v[1]), loss_reduction(call))};
    });
  }
  for (const LossEntry& entry : kSlopes) {
    r.add(entry.op, [entry](Call& call) -> Values {
      const Values v = inputs(call, {"self", "target"});
      const Value slope = entry.function(call, v[0], v[1]);
      const Value g = as(call.tensor("grad_output"), slope.dtype(), slope.dims());
      const double count = loss_count(slope, loss_reduction(call));
      return {count == 1.0 ? slope * g : slope * (g / count)};
    });
  }
}

void register_loss(Registry& r) {
  register_elementwise_losses(r);
  register_class_losses(r);
  register_ctc_loss(r);
}

}  // namespace torch_tpu::lowering
