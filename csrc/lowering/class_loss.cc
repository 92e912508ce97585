// Losses against class indices: negative log likelihood and the margin losses.
#include "lowering/expression.h"
#include "lowering/joined_rows.h"
#include "lowering/loss.h"
#include "lowering/platform.h"
#include "lowering/promotion.h"

namespace torch_tpu::lowering {

namespace sh = stablehlo;

namespace {

Value input(const Call& call, std::string_view name = "self") {
  const Value x = call.tensor(name);
  return sh::convert(x, compute_type(x.dtype()));
}

// Scores and which of their dimensions is the classes.
struct Scores {
  Value value;
  int64_t classes = 1;

  Dims target_dims() const {
    Dims dims = value.dims();
    dims.erase(dims.begin() + classes);
    return dims;
  }
};

// `per_target` repeated along the classes.
Value along_classes(Value per_target, const Scores& scores) {
  return sh::broadcast_to(sh::expand_dim(per_target, scores.classes), scores.value.dims());
}

// Where the class is the target's.
Value one_hot(Value target, const Scores& scores) {
  const Value classes =
      sh::iota(target.builder(), {target.dtype(), scores.value.dims()}, scores.classes);
  return equals(classes, along_classes(target, scores));
}

// One score for each target: scores[n, target[n, ...], ...].
Value gathered(const Scores& scores, Value target) {
  sh::GatherDims dims;
  dims.collapsed_slice_dims = {scores.classes};
  dims.start_index_map = {scores.classes};
  dims.index_vector_dim = target.rank();
  for (int64_t i = 0, at = 0; i < scores.value.rank(); ++i) {
    if (i == scores.classes) continue;
    dims.operand_batching_dims.push_back(i);
    dims.start_indices_batching_dims.push_back(at++);
  }
  const Dims ones(static_cast<size_t>(scores.value.rank()), 1);
  return sh::gather(scores.value, sh::expand_dim(target, target.rank()), dims, ones);
}

// Whether the program makes the value, not its caller.
bool is_made_here(Value value) {
  const auto* const made = value.builder().rearrangement(value);
  return made ? is_made_here(made->operand) : !value.builder().is_parameter(value);
}

// The same. XLA for TPUs fuses a sum with whatever makes the scores, so that they are never stored
// for a gather, which is slow there besides.
Value pick(const Scores& scores, Value target) {
  const Value from = scores.value;
  if (from.numel() == 0) return sh::splat(from.builder(), {from.dtype(), target.dims()}, 0.0);
  if (CompilingFor::platform() != Platform::kTpu || !is_made_here(from)) {
    return gathered(scores, target);
  }
  return sh::reduce_sum(choose(one_hot(target, scores), from, 0.0), {scores.classes});
}

// weights[target].
Value look_up(Value weights, Value target) {
  if (weights.numel() == 0) {  // and so no targets
    return sh::splat(weights.builder(), {weights.dtype(), target.dims()}, 0.0);
  }
  sh::GatherDims dims;
  dims.collapsed_slice_dims = {0};
  dims.start_index_map = {0};
  dims.index_vector_dim = target.rank();
  return sh::gather(weights, sh::expand_dim(target, target.rank()), dims, {1});
}

struct Targets {
  Value index;    // 0 where ignored
  Value weight;   // 0 where ignored
  Value ignored;  // adds nothing, not even where its score is infinite
};

Targets targets(const Call& call, const Scores& scores) {
  const ElementType type = scores.value.dtype();
  Value target = call.tensor("target");
  const bool bytes =
      target.dtype() == ElementType::kU8 && !call.op().starts_with("aten::nll_loss2d");
  if (target.dtype() != ElementType::kS64 && !bytes) {
    throw InvalidArgument(call.op() + ": expected target to be int64, got " +
                          std::string(sh::name(target.dtype())) + "; convert it");
  }
  if (const Value given = call.tensor_or_empty("weight");
      given && given.dtype() != call.tensor("self").dtype()) {
    throw InvalidArgument(call.op() + ": expected weight to have the dtype of the scores, " +
                          std::string(sh::name(call.tensor("self").dtype())) + ", got " +
                          std::string(sh::name(given.dtype())) + "; convert it");
  }
  target = sh::reshape(sh::convert(target, ElementType::kS64), scores.target_dims());
  const Value ignored =
      equals(target, sh::full_like(target, call.integer_or("ignore_index", -100)));
  // There are less than 2^31 classes.
  const Value index = sh::convert(choose(ignored, 0.0, target), ElementType::kS32);
  const Value weights = call.tensor_or_empty("weight");
  const Value weight = weights ? look_up(sh::convert(weights, type), index)
                               : sh::splat(call.builder(), {type, target.dims()}, 1.0);
  return {index, choose(ignored, 0.0, weight), ignored};
}

Value sum_all(Value x) { return sh::reduce_sum(x, wrap_dims({}, x.rank())); }

// --- Negative log likelihood, of (C), (N, C) and (N, C, H, W) scores
// ------------------------------

// The scores with the classes second, last, or, of one sample, alone.
Scores scores_of(const Call& call) {
  const Value given = call.tensor("self");
  const Value apart = sh::convert(rows_apart(given), compute_type(given.dtype()));
  return {apart, given.rank() <= 2 ? apart.rank() - 1 : 1};
}

Values nll_forward_rule(Call& call) {
  const Scores scores = scores_of(call);
  const Targets target = targets(call, scores);
  const LossReduction reduction = loss_reduction(call);
  const Value losses = choose(target.ignored, 0.0, -(target.weight * pick(scores, target.index)));
  if (reduction == LossReduction::kNone && scores.value.rank() > 1) {
    return {sh::reshape(losses, call.tensor("target").dims()),
            sh::scalar(call.builder(), losses.dtype(), 0.0)};
  }
  const Value total = sum_all(target.weight);
  const Value sum = sum_all(losses);
  return {reduction == LossReduction::kMean ? sum / total : sum, total};
}

Values nll_backward_rule(Call& call) {
  const Scores scores = scores_of(call);
  const Targets target = targets(call, scores);
  Value g = sh::convert(call.tensor("grad_output"), scores.value.dtype());
  if (loss_reduction(call) == LossReduction::kMean) {
    g = g / as(sh::reshape(call.tensor("total_weight"), {}), g.dtype(), g.dims());
  }
  if (g.rank() > 0) g = sh::reshape(g, target.weight.dims());
  const Value slope = -(target.weight * sh::broadcast_to(g, target.weight.dims()));
  const Value per_target = choose(target.ignored, 0.0, slope);
  const Value grad = choose(one_hot(target.index, scores), along_classes(per_target, scores), 0.0);
  return {sh::reshape(grad, call.tensor("self").dims())};
}

// --- Margin losses
// --------------------------------------------------------------------------------

// Scores as (N, C) and targets as (N): one sample may come without its dimension.
Value as_batch(Value x, int64_t rank) {
  return x.rank() == rank ? x : sh::reshape(x, rank == 2 ? Dims{1, x.numel()} : Dims{x.numel()});
}

// The rules see to the types of results themselves, so what the meta kernels would refuse comes
// here.
void check_margin_operands(const Call& call, const char* what) {
  if (call.tensor("target").dtype() != ElementType::kS64) {
    throw InvalidArgument(std::string(what) + ": expected a target of int64");
  }
  const Value x = call.tensor("self");
  const int64_t classes = x.rank() > 0 ? x.dims().back() : 1;
  if (x.rank() > 2 || classes == 0) {
    throw InvalidArgument(std::string(what) + ": expected scores of one or two dimensions, and " +
                          "at least one class");
  }
  const Value weight = call.tensor_or_empty("weight");
  if (weight && (weight.rank() > 1 || weight.numel() != classes)) {
    throw InvalidArgument(std::string(what) + ": expected a weight for each class");
  }
}

struct Margins {
  Value excess;   // margin - x[target] + x[class], (N, C)
  Value counted;  // the excess is positive and the class is not the target
  Value weight;   // of the target's class, along the classes; empty without weights
  Value target;   // (N)
};

Margins margins(const Call& call, Value x) {
  const Scores scores{x};
  const Value target = as_batch(sh::convert(call.tensor("target"), ElementType::kS64), 1);
  const Value margin = sh::broadcast_to(call.number("margin", x.dtype()), x.dims());
  const Value excess = margin - along_classes(pick(scores, target), scores) + x;
  const Value counted = (excess > 0.0) & not_(one_hot(target, scores));
  const Value weights = call.tensor_or_empty("weight");
  const Value weight =
      weights ? along_classes(look_up(sh::convert(weights, x.dtype()), target), scores) : Value();
  return {excess, counted, weight, target};
}

bool squared_margin(const Call& call) {
  const std::optional<double> p = call.known_number("p");
  if (p && *p != 1 && *p != 2) {
    throw InvalidArgument("multi_margin_loss: only p == 1 and p == 2 supported");
  }
  return p && *p == 2;
}

Values multi_margin_rule(Call& call) {
  check_margin_operands(call, "multi_margin_loss");
  const Value scores = as_batch(input(call), 2);
  const Margins m = margins(call, scores);
  Value losses = squared_margin(call) ? m.excess * m.excess : m.excess;
  if (m.weight) losses = losses * m.weight;
  const Value counted = choose(m.counted, losses, 0.0);
  const Value sample = sh::reduce_sum(counted, {1}) / static_cast<double>(scores.dim(1));
  const Value result = reduce_loss(sample, loss_reduction(call));
  return {call.tensor("target").rank() == 0 ? sh::reshape(result, {}) : result};
}

Values multi_margin_backward_rule(Call& call) {
  const Value original = input(call);
  const Value scores = as_batch(original, 2);
  const Margins m = margins(call, scores);
  const LossReduction reduction = loss_reduction(call);
  const double samples =
      reduction == LossReduction::kMean ? static_cast<double>(scores.dim(0)) : 1.0;
  Value slope = squared_margin(call) ? 2.0 * m.excess : constant_like(scores, 1.0);
  if (m.weight) slope = slope * m.weight;
  slope = choose(m.counted, slope / (samples * static_cast<double>(scores.dim(1))), 0.0);
  const Value at_target = along_classes(-sh::reduce_sum(slope, {1}), {scores});
  Value g = sh::convert(call.tensor("grad_output"), scores.dtype());
  if (g.rank() == 1) g = sh::expand_dim(g, 1);
  const Value result =
      choose(one_hot(m.target, {scores}), at_target, slope) * sh::broadcast_to(g, scores.dims());
  return {sh::reshape(result, original.dims())};
}

// Target lists end at the first -1. slots: (N, J, C), slot j of sample n names class c.
struct LabelSets {
  Value slots;
  Value is_target;  // (N, C)
};

LabelSets label_sets(Value target) {
  Builder& b = target.builder();
  const int64_t n = target.dim(0), c = target.dim(1);
  const TensorType type{ElementType::kS64, {n, c}};
  const Value position = sh::iota(b, type, 1);
  const Value ends = choose(target < 0.0, position, sh::splat(b, type, c));
  const Value length = sh::reduce_min(ends, {1});
  const Value listed = position < sh::broadcast_to(sh::expand_dim(length, 1), {n, c});
  const Value index = choose(listed, target, -1.0);
  const Dims cube{n, c, c};
  const Value classes = sh::iota(b, {ElementType::kS64, cube}, 2);
  const Value slots = equals(classes, sh::broadcast_to(sh::expand_dim(index, 2), cube));
  return {slots, sh::reduce_or(slots, {1})};
}

struct LabelMargins {
  LabelSets labels;
  Value excess;  // (N, J, C): 1 - x[target j] + x[c]
  Value counted;
};

LabelMargins label_margins(Value scores, Value target) {
  const LabelSets labels = label_sets(target);
  const Dims& cube = labels.slots.dims();
  const Value wide = sh::broadcast_to(sh::expand_dim(scores, 1), cube);
  const Value chosen = sh::reduce_sum(choose(labels.slots, wide, 0.0), {2});
  const Value excess = 1.0 - sh::broadcast_to(sh::expand_dim(chosen, 2), cube) + wide;
  const Value used = sh::broadcast_to(sh::expand_dim(sh::reduce_or(labels.slots, {2}), 2), cube);
  const Value other = sh::broadcast_to(sh::expand_dim(not_(labels.is_target), 1), cube);
  return {labels, excess, used & other & (excess > 0.0)};
}

Values multilabel_margin_rule(Call& call) {
  check_margin_operands(call, "multilabel_margin_loss");
  const Value original = input(call);
  const Value scores = as_batch(original, 2);
  const Value target = as_batch(sh::convert(call.tensor("target"), ElementType::kS64), 2);
  const LabelMargins m = label_margins(scores, target);
  const Value sample =
      sh::reduce_sum(choose(m.counted, m.excess, 0.0), {1, 2}) / static_cast<double>(scores.dim(1));
  const Value result = reduce_loss(sample, loss_reduction(call));
  return {original.rank() < 2 ? sh::reshape(result, {}) : result,
          sh::reshape(sh::convert(m.labels.is_target, scores.dtype()), original.dims())};
}

Values multilabel_margin_backward_rule(Call& call) {
  const Value original = input(call);
  const Value scores = as_batch(original, 2);
  const Value target = as_batch(sh::convert(call.tensor("target"), ElementType::kS64), 2);
  const LabelMargins m = label_margins(scores, target);
  const bool mean = loss_reduction(call) == LossReduction::kMean;
  const double count = static_cast<double>(scores.dim(1) * (mean ? scores.dim(0) : 1));
  const Value slope = sh::convert(m.counted, scores.dtype());
  const Value per_slot =
      sh::broadcast_to(sh::expand_dim(sh::reduce_sum(slope, {2}), 2), slope.dims());
  const Value gradient =
      sh::reduce_sum(slope, {1}) - sh::reduce_sum(choose(m.labels.slots, per_slot, 0.0), {1});
  Value g = sh::convert(call.tensor("grad_output"), scores.dtype());
  if (g.rank() == 1) g = sh::expand_dim(g, 1);
  return {sh::reshape(gradient / count * sh::broadcast_to(g, scores.dims()), original.dims())};
}

}  // namespace

void register_class_losses(Registry& r) {
  r.add("aten::nll_loss_forward", nll_forward_rule, {.bytes_as_int64 = {"target"}});
  r.add("aten::nll_loss2d_forward", nll_forward_rule);
  r.add("aten::nll_loss_backward", nll_backward_rule, {.bytes_as_int64 = {"target"}});
  r.add("aten::nll_loss2d_backward", nll_backward_rule);
  // The meta kernels of both give a single sample's loss a dimension.
  r.add("aten::multi_margin_loss", multi_margin_rule, {.known_numbers = {"p"}, .own_types = true});
  r.add("aten::multi_margin_loss_backward", multi_margin_backward_rule, {.known_numbers = {"p"}});
  r.add("aten::multilabel_margin_loss_forward", multilabel_margin_rule, {.own_types = true});
  r.add("aten::multilabel_margin_loss_backward", multilabel_margin_backward_rule);
}

}  // namespace torch_tpu::lowering
