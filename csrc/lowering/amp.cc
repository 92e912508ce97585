// The gradient scaler: unscaling with a check for overflow, and the scale's next value.
#include "lowering/expression.h"
#include "lowering/foreach.h"
#include "lowering/promotion.h"

namespace torch_tpu::lowering {

namespace sh = stablehlo;

namespace {

Values unscale_rule(Call& call) {
  const Values gradients = call.tensors("self");
  const Value found_before = call.tensor("found_inf");
  const Value scale = sh::convert(sh::reshape(call.tensor("inv_scale"), {}), ElementType::kF32);
  Values results;
  Value found = sh::scalar(call.builder(), ElementType::kPred, false);
  for (const Value gradient : gradients) {
    Dims all;
    for (int64_t i = 0; i < gradient.rank(); ++i) all.push_back(i);
    found = found | sh::reduce_or(not_(is_finite(gradient)), all);
    const ElementType type = compute_type(gradient.dtype());
    const Value g = sh::convert(gradient, type);
    results.push_back(g * as(scale, type, g.dims()));
  }
  const Value flag = sh::broadcast_to(found, found_before.dims());
  results.push_back(choose(flag, 1.0, found_before));
  return results;
}

// Growth after `growth_interval` steps without overflow, backoff at each overflow.
Values update_scale_rule(Call& call) {
  const Value scale = call.tensor("self");
  const Value tracker = call.tensor("growth_tracker");
  const Value overflow =
      sh::broadcast_to(sh::reshape(differs(call.tensor("found_inf"), 0.0), {}), scale.dims());
  const auto factor = [&](std::string_view name) {
    return as(call.number(name, ElementType::kF64), scale.dtype(), scale.dims());
  };
  const Value successes = tracker + 1.0;
  const Value due = equals(successes, static_cast<double>(call.integer("growth_interval")));
  const Value grown = scale * factor("scale_growth_factor");
  const Value due_scale = sh::broadcast_to(sh::reshape(due, {}), scale.dims()) & is_finite(grown);
  const Value kept = choose(due_scale, grown, scale);
  const Value reset = due | sh::broadcast_to(sh::reshape(overflow, {}), tracker.dims());
  return {choose(overflow, scale * factor("scale_backoff_factor"), kept),
          choose(reset, 0.0, successes)};
}

}  // namespace

void register_amp(Registry& r) {
  r.add("aten::_amp_foreach_non_finite_check_and_unscale_", unscale_rule);
  r.add("aten::_amp_update_scale_", update_scale_rule);
}

}  // namespace torch_tpu::lowering
