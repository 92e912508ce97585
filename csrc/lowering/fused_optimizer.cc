// Optimizer steps over all parameters in one program. Hyperparameters are operands: a schedule
// does not compile again. `found_inf` (the gradient scaler's flag) leaves everything as it was.
#include "lowering/expression.h"
#include "lowering/foreach.h"
#include "lowering/promotion.h"

namespace torch_tpu::lowering {

namespace sh = stablehlo;

namespace {

// One list argument the op writes: old and new values, in the order of its elements.
struct Mutated {
  Values before;
  Values after;
};

class FusedStep {
 public:
  explicit FusedStep(const Call& call)
      : call_(call), parameters_{call.tensors("self"), {}}, gradients_{call.tensors("grads"), {}} {
    if (call.has("found_inf")) {
      const Value flag = sh::reshape(call.tensor("found_inf"), {});
      skip_ = differs(flag, 0.0);
    }
  }

  size_t size() const { return parameters_.before.size(); }
  void select_element(size_t i) {
    index_ = i;
    type_ = compute_type(parameters_.before[i].dtype());
    dims_ = parameters_.before[i].dims();
  }

  // Element i of a list, in the type the step computes in.
  Value element(const Values& list) const { return sh::convert(list.at(index_), type_); }
  Value parameter() const { return element(parameters_.before); }
  Value scalar_element(std::string_view list) const {
    return sh::convert(sh::reshape(call_.tensors(list).at(index_), {}), type_);
  }
  // A hyperparameter as a scalar.
  Value exact(std::string_view name) const {
    if (call_.has(name) && std::holds_alternative<TensorArgument>(*call_.find(name))) {
      return sh::convert(sh::reshape(call_.tensor(name), {}), ElementType::kF64);
    }
    return call_.number(name, ElementType::kF64);
  }
  Value spread(Value scalar) const { return as(scalar, type_, dims_); }
  Value hyper(std::string_view name) const { return spread(exact(name)); }
  bool is_zero(std::string_view name) const { return call_.is_known(name, 0); }

  // The gradient, unscaled; the unscaled one is what the op leaves in `grads`.
  Value gradient() {
    Value g = element(gradients_.before);
    if (call_.has("grad_scale")) {
      g = g / spread(sh::reshape(call_.tensor("grad_scale"), {}));
      gradients_.after.push_back(g);
    } else {
      gradients_.after.emplace_back();
    }
    return call_.boolean("maximize") ? -g : g;
  }

  void set_parameter(Value value) { parameters_.after.push_back(value); }

  // The results: parameters, gradients, then the given state lists.
  Values finish(const std::vector<Mutated>& state) const {
    Values results;
    append(parameters_, results);
    append(gradients_, results);
    for (const Mutated& list : state) append(list, results);
    return results;
  }

 private:
  void append(const Mutated& list, Values& results) const {
    for (size_t i = 0; i < list.before.size(); ++i) {
      const Value after = i < list.after.size() ? list.after[i] : Value();
      if (!after || !skip_) {
        results.push_back(after);
        continue;
      }
      const Value before = list.before[i];
      const Value rounded = sh::convert(after, before.dtype());
      results.push_back(choose(sh::broadcast_to(skip_, before.dims()), before, rounded));
    }
  }

  const Call& call_;
  Mutated parameters_;
  Mutated gradients_;
  Value skip_;
  size_t index_ = 0;
  ElementType type_ = ElementType::kF32;
  Dims dims_;
};

// 1 - beta^step, accurate for beta near 1 also in float32.
Value bias_correction(const FusedStep& step, std::string_view beta, Value steps) {
  const Value rate = sh::convert(log(step.exact(beta)), steps.dtype());
  return -exponential_minus_one(steps * rate);
}

enum class WeightDecay { kInGradient, kDecoupled };

Rule adam(WeightDecay decay) {
  return [decay](Call& call) {
    FusedStep step(call);
    const bool amsgrad = call.boolean("amsgrad");
    Mutated average{call.tensors("exp_avgs"), {}};
    Mutated square{call.tensors("exp_avg_sqs"), {}};
    Mutated largest{call.tensors("max_exp_avg_sqs"), {}};
    const Value one = sh::scalar(call.builder(), ElementType::kF64, 1.0);
    for (size_t i = 0; i < step.size(); ++i) {
      step.select_element(i);
      Value parameter = step.parameter();
      Value gradient = step.gradient();
      if (!step.is_zero("weight_decay")) {
        if (decay == WeightDecay::kDecoupled) {
          parameter = parameter * step.spread(one - step.exact("lr") * step.exact("weight_decay"));
        } else {
          gradient = gradient + parameter * step.hyper("weight_decay");
        }
      }
      const Value m = step.element(average.before);
      const Value v = step.element(square.before);
      const Value new_m = m + step.spread(one - step.exact("beta1")) * (gradient - m);
      const Value new_v =
          v * step.hyper("beta2") + step.spread(one - step.exact("beta2")) * gradient * gradient;
      Value deviation = new_v;
      if (amsgrad) {
        deviation = maximum(step.element(largest.before), new_v);
        largest.after.push_back(deviation);
      }
      const Value steps = step.scalar_element("state_steps");
      const Value correction1 = bias_correction(step, "beta1", steps);
      const Value correction2 = sqrt(bias_correction(step, "beta2", steps));
      const Value size = sh::convert(step.exact("lr"), steps.dtype()) / correction1;
      const Value denominator = sqrt(deviation) / step.spread(correction2) + step.hyper("eps");
      average.after.push_back(new_m);
      square.after.push_back(new_v);
      step.set_parameter(parameter - step.spread(size) * new_m / denominator);
    }
    return step.finish({average, square, largest});
  };
}

Values sgd_rule(Call& call) {
  FusedStep step(call);
  Mutated momentum{call.tensors("momentum_buffer_list"), {}};
  const bool first = call.boolean("is_first_step");
  const Value one = sh::scalar(call.builder(), ElementType::kF64, 1.0);
  for (size_t i = 0; i < step.size(); ++i) {
    step.select_element(i);
    const Value parameter = step.parameter();
    Value gradient = step.gradient();
    if (!step.is_zero("weight_decay")) {
      gradient = gradient + parameter * step.hyper("weight_decay");
    }
    if (!momentum.before.empty()) {
      const Value kept = step.hyper("momentum");
      Value buffer = gradient;
      if (!first) {
        buffer = step.element(momentum.before) * kept +
                 gradient * step.spread(one - step.exact("dampening"));
      }
      momentum.after.push_back(buffer);
      gradient = call.boolean("nesterov") ? gradient + buffer * kept : buffer;
    }
    step.set_parameter(parameter - step.hyper("lr") * gradient);
  }
  return step.finish({momentum});
}

Values adagrad_rule(Call& call) {
  FusedStep step(call);
  Mutated sum{call.tensors("state_sums"), {}};
  // Only one overload declares that it writes the steps; none does.
  const bool steps_declared = !call.overload().starts_with("tensor_lr");
  for (size_t i = 0; i < step.size(); ++i) {
    step.select_element(i);
    const Value parameter = step.parameter();
    Value gradient = step.gradient();
    if (!step.is_zero("weight_decay")) {
      gradient = gradient + parameter * step.hyper("weight_decay");
    }
    const Value steps = step.scalar_element("state_steps");
    const Value decay = 1.0 + (steps - 1.0) * sh::convert(step.exact("lr_decay"), steps.dtype());
    const Value rate = sh::convert(step.exact("lr"), steps.dtype()) / decay;
    const Value new_sum = step.element(sum.before) + gradient * gradient;
    sum.after.push_back(new_sum);
    step.set_parameter(parameter -
                       step.spread(rate) * gradient / (sqrt(new_sum) + step.hyper("eps")));
  }
  if (!steps_declared) return step.finish({sum});
  return step.finish({sum, Mutated{call.tensors("state_steps"), {}}});
}

}  // namespace

void register_fused_optimizers(Registry& r) {
  r.add("aten::_fused_adam_", adam(WeightDecay::kInGradient));
  r.add("aten::_fused_adamw_", adam(WeightDecay::kDecoupled));
  r.add("aten::_fused_sgd_", sgd_rule);
  r.add("aten::_fused_adagrad_", adagrad_rule);
}

}  // namespace torch_tpu::lowering
