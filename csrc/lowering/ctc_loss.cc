// Connectionist temporal classification: the forward and backward recursions over the label
// sequence with blanks between, in the log domain, one loop over time for the whole batch.
//
// Reference: Graves et al., Connectionist Temporal Classification (ICML 2006), equations 5 to 16.
#include <algorithm>
#include <cmath>
#include <limits>

#include "lowering/expression.h"
#include "lowering/loss.h"
#include "lowering/promotion.h"

namespace torch_tpu::lowering {

namespace sh = stablehlo;

namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();  // ln 0

// ln(exp a + exp b + ...), of which all may be ln 0.
Value log_sum(const Values& terms) {
  Value largest = terms.front();
  for (size_t i = 1; i < terms.size(); ++i) largest = maximum(largest, terms[i]);
  const Value anchor = choose(equals(largest, kNever), 0.0, largest);
  Value sum;
  for (const Value term : terms) {
    const Value part = exponential(term - anchor);
    sum = sum ? sum + part : part;
  }
  return log(sum) + anchor;
}

// x[:, i - by] with ln 0 moved in; `by` may be negative.
Value shifted(Value x, int64_t by) {
  const Value fill = sh::scalar(x.builder(), x.dtype(), kNever);
  return sh::pad(x, fill, {0, by}, {0, -by});
}

// The call's data in a uniform shape. T steps, N samples, C classes, L = 2 S + 1 positions.
struct Ctc {
  Value log_probs;       // (T, N, C)
  Value labels;          // (N, L): blank, target 0, blank, target 1, ..., blank
  Value scores;          // (T, N, L): log_probs of the labels
  Value skippable;       // (N, L): the label differs from the one two positions before
  Value position;        // (N, L): 0, 1, ... along L
  Value input_lengths;   // (N)
  Value target_lengths;  // (N)
  int64_t steps, samples, classes, length;

  Value along_positions(Value per_sample) const {
    return sh::broadcast_to(sh::expand_dim(per_sample, 1), {samples, length});
  }
  // The position of the last blank (0) or of the last label (1).
  Value at_end(int64_t before_last) const {
    const Value last = along_positions(target_lengths * 2.0);
    return equals(position, last - static_cast<double>(before_last));
  }
};

Value lengths(const Call& call, std::string_view name) {
  const Argument* argument = call.find(name);
  if (argument && std::holds_alternative<TensorArgument>(*argument)) {
    return sh::convert(call.tensor(name), ElementType::kS64);
  }
  const Dims values = call.ints(name);
  return sh::constant(call.builder(), std::span<const int64_t>(values));
}

// Rows of `table` (M) or (N, M) at `index` (N, S).
Value look_up(Value table, Value index) {
  sh::GatherDims dims;
  const bool batched = table.rank() == 2;
  if (batched) {
    dims.operand_batching_dims = {0};
    dims.start_indices_batching_dims = {0};
  }
  dims.collapsed_slice_dims = {batched ? 1 : 0};
  dims.start_index_map = {batched ? 1 : 0};
  dims.index_vector_dim = 2;
  return sh::gather(table, sh::expand_dim(index, 2), dims, Dims(batched ? 2 : 1, 1));
}

// The targets as (N, S), S the longest length; what lies beyond a sample's length is arbitrary.
Value padded_targets(const Call& call, Value target_lengths, int64_t longest) {
  const Value targets = sh::convert(call.tensor("targets"), ElementType::kS64);
  Builder& b = call.builder();
  const int64_t samples = target_lengths.dim(0);
  if (longest == 0 || targets.numel() == 0) {
    return sh::splat(b, {ElementType::kS64, {samples, longest}}, 0);
  }
  if (targets.rank() == 2) {
    return longest == targets.dim(1) ? targets : sh::slice_dim(targets, 1, 0, longest);
  }
  // One after the other: sample n begins where the lengths before it end.
  const TensorType square{ElementType::kS64, {samples, samples}};
  const Value before = sh::iota(b, square, 1) < sh::iota(b, square, 0);
  const Value lengths = sh::broadcast_to(target_lengths, square.dims);
  const Value offset = sh::reduce_sum(choose(before, lengths, 0.0), {1});
  const Dims dims{samples, longest};
  const Value index =
      sh::broadcast_to(sh::expand_dim(offset, 1), dims) + sh::iota(b, {ElementType::kS64, dims}, 1);
  const Value last = constant_like(index, static_cast<double>(targets.numel() - 1));
  return look_up(targets, minimum(index, last));
}

// The longest target: known from the lengths, else the widest the targets allow.
int64_t longest_target(const Call& call) {
  if (const auto* known = std::get_if<Dims>(call.find("target_lengths"))) {
    return known->empty() ? 0 : *std::max_element(known->begin(), known->end());
  }
  const Value targets = call.tensor("targets");
  return targets.rank() == 2 ? targets.dim(1) : targets.numel();
}

Ctc prepare(const Call& call, int64_t longest) {
  Ctc c;
  Builder& b = call.builder();
  const Value log_probs = call.tensor("log_probs");
  c.log_probs = sh::convert(log_probs, compute_type(log_probs.dtype()));
  c.steps = log_probs.dim(0), c.samples = log_probs.dim(1), c.classes = log_probs.dim(2);
  if (c.log_probs.numel() == 0) throw Unsupported(call.op() + ": an empty batch");
  c.length = 2 * longest + 1;
  c.input_lengths = lengths(call, "input_lengths");
  c.target_lengths = lengths(call, "target_lengths");
  const Value targets = padded_targets(call, c.target_lengths, longest);
  const Value zero = sh::scalar(b, ElementType::kS64, 0);
  const Value last_class = constant_like(targets, static_cast<double>(c.classes - 1));
  const Value classes = minimum(maximum(targets, constant_like(targets, 0.0)), last_class);
  // Labels in the odd positions.
  const Value spread = sh::pad(classes, zero, {0, 1}, {0, 1}, {0, 1});
  const Dims dims{c.samples, c.length};
  const Value labels = longest == 0 ? sh::splat(b, {ElementType::kS64, dims}, 0)
                                    : sh::slice_dim(spread, 1, 0, c.length);
  c.position = sh::iota(b, {ElementType::kS64, dims}, 1);
  const Value odd = equals(remainder(c.position, constant_like(c.position, 2.0)), 1.0);
  c.labels = choose(odd, labels, static_cast<double>(call.integer_or("blank", 0)));
  const Value earlier = sh::pad(c.labels, zero, {0, 2}, {0, -2});
  c.skippable = odd & differs(c.labels, earlier) & (c.position >= 2.0);
  sh::GatherDims gather;  // log_probs[t, n, labels[n, s]]
  gather.offset_dims = {0};
  gather.collapsed_slice_dims = {2};
  gather.operand_batching_dims = {1};
  gather.start_indices_batching_dims = {0};
  gather.start_index_map = {2};
  gather.index_vector_dim = 2;
  c.scores = sh::gather(c.log_probs, sh::expand_dim(c.labels, 2), gather, {c.steps, 1, 1});
  return c;
}

Value step_of(Value series, Value t) {
  const Value zero = sh::scalar(t.builder(), t.dtype(), 0);
  const Dims& dims = series.dims();
  return sh::reshape(sh::dynamic_slice(series, {t, zero, zero}, {1, dims[1], dims[2]}),
                     {dims[1], dims[2]});
}

Value with_step(Value series, Value step, Value t) {
  const Value zero = sh::scalar(t.builder(), t.dtype(), 0);
  return sh::dynamic_update_slice(series, sh::expand_dim(step, 0), {t, zero, zero});
}

// Runs `body(t, scores of step t, state) -> state` over all steps and collects the states, (T, N,
// L). Returns the last state and the collection.
struct Steps {
  Value last;
  Value all;
};
using StepBody = std::function<Value(Value t, Value scores, Value state, const Values& captured)>;

Steps over_time(const Ctc& c, Value initial, bool backwards, const Values& captured,
                const StepBody& body) {
  Builder& b = initial.builder();
  const Value first = sh::scalar(b, ElementType::kS64, backwards ? c.steps - 1 : int64_t{0});
  Values state{first, initial, constant_like(c.scores, 0.0), c.scores};
  state.insert(state.end(), captured.begin(), captured.end());
  const int64_t steps = c.steps;
  const auto running = [&](const Values& v) -> Values {
    return {backwards ? v[0] >= 0.0 : v[0] < static_cast<double>(steps)};
  };
  const auto one = [&](const Values& v) -> Values {
    const Values rest(v.begin() + 4, v.end());
    Values next = v;
    next[1] = body(v[0], step_of(v[3], v[0]), v[1], rest);
    next[2] = with_step(v[2], next[1], v[0]);
    next[0] = v[0] + (backwards ? -1.0 : 1.0);
    return next;
  };
  const Values end = sh::while_(state, running, one);
  return {end[1], end[2]};
}

Value like_step(Value t, Value step) { return sh::broadcast_to(t, step.dims()); }

Values ctc_loss_rule(Call& call) {
  int64_t longest = longest_target(call);
  if (call.num_outputs() > 1) longest = (call.output(1).dims.back() - 1) / 2;
  const Ctc c = prepare(call, longest);
  const Value initial =
      sh::splat(call.builder(), {c.scores.dtype(), {c.samples, c.length}}, kNever);
  // A target without labels has no first label to begin with.
  const Value start = equals(c.position, 0.0) |
                      (equals(c.position, 1.0) & (c.along_positions(c.target_lengths) > 0.0));
  const Value used = c.along_positions(c.input_lengths);
  const Values captured{start, c.skippable, used};
  const Steps alpha = over_time(
      c, initial, false, captured, [](Value t, Value scores, Value state, const Values& captured) {
        const Value skip = choose(captured[1], shifted(state, 2), kNever);
        const Value arrived = log_sum({state, shifted(state, 1), skip}) + scores;
        const Value begun = choose(captured[0], scores, kNever);
        const Value now = like_step(t, captured[2]);
        const Value next = choose(equals(now, 0.0), begun, arrived);
        return choose(now < captured[2], next, state);
      });
  const auto final_at = [&](int64_t before_last) {
    const Value there = choose(c.at_end(before_last), alpha.last, kNever);
    return sh::reduce_max(there, {1});
  };
  const Value likelihood = log_sum({final_at(0), final_at(1)});
  // Nothing explains nothing.
  const Value trivial = equals(c.input_lengths, 0.0) & equals(c.target_lengths, 0.0);
  return {choose(trivial, 0.0, -likelihood), sh::transpose(alpha.all, {1, 0, 2})};
}

Values ctc_loss_backward_rule(Call& call) {
  const Value log_alpha = call.tensor("log_alpha");
  const Ctc c = prepare(call, (log_alpha.dim(2) - 1) / 2);
  const ElementType type = c.scores.dtype();
  const Value initial = sh::splat(call.builder(), {type, {c.samples, c.length}}, kNever);
  const Value end = c.at_end(0) | (c.at_end(1) & (c.along_positions(c.target_lengths) > 0.0));
  const Value used = c.along_positions(c.input_lengths);
  // Position s may be left for s + 2 where s + 2 may be reached from s.
  const Value no = sh::scalar(call.builder(), ElementType::kPred, false);
  const Value skippable = sh::pad(c.skippable, no, {0, -2}, {0, 2});
  const Value inside = c.position <= c.along_positions(c.target_lengths * 2.0);
  const Values captured{end, skippable, used, inside};
  const Steps beta = over_time(
      c, initial, true, captured, [](Value t, Value scores, Value state, const Values& captured) {
        const Value skip = choose(captured[1], shifted(state, -2), kNever);
        const Value left = log_sum({state, shifted(state, -1), skip}) + scores;
        const Value ended = choose(captured[0], scores, kNever);
        const Value now = like_step(t, captured[2]);
        const Value next = choose(equals(now, captured[2] - 1.0), ended, left);
        return choose((now < captured[2]) & captured[3], next, kNever);
      });
  const Value alpha = sh::transpose(sh::convert(log_alpha, type), {1, 0, 2});
  const Value loss = sh::convert(call.tensor("neg_log_likelihood"), type);
  const auto everywhere = [&](Value per_sample, const Value& like) {
    return sh::broadcast_in_dim(per_sample, like.dims(), {1});
  };
  // How probable it is to be at a position at a step, given the targets.
  const Value joint = choose(equals(beta.all, kNever), kNever, alpha + beta.all);
  const Value occupied = exponential(joint - c.scores + everywhere(loss, joint));
  const Value occupancy = choose(equals(joint, kNever), 0.0, occupied);
  const Dims one_hot_dims{c.samples, c.length, c.classes};
  const Value classes = sh::iota(call.builder(), {ElementType::kS64, one_hot_dims}, 2);
  const Value labels = sh::broadcast_to(sh::expand_dim(c.labels, 2), one_hot_dims);
  const Value one_hot = sh::convert(equals(classes, labels), type);
  const Value by_class =
      sh::transpose(sh::dot_general(occupancy, one_hot, {{1}, {0}, {2}, {1}}, type), {1, 0, 2});
  const Value g = sh::convert(call.tensor("grad"), type);
  const Value finite = (exponential(c.log_probs) - by_class) * everywhere(g, c.log_probs);
  // Targets that cannot be: the loss is infinite and has no derivative.
  const double otherwise = call.boolean("zero_infinity") ? 0.0 : NAN;
  const Value gradient = choose(everywhere(is_inf(loss), finite), otherwise, finite);
  const Value steps = sh::iota(call.builder(), {ElementType::kS64, gradient.dims()}, 0);
  return {choose(steps < everywhere(c.input_lengths, gradient), gradient, 0.0)};
}

}  // namespace

void register_ctc_loss(Registry& r) {
  r.add("aten::_ctc_loss", ctc_loss_rule);
  r.add("aten::_ctc_loss_backward", ctc_loss_backward_rule);
}

}  // namespace torch_tpu::lowering
