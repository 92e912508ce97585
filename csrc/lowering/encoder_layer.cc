#include "lowering/encoder_layer.h"

#include <cmath>
#include <limits>

#include "lowering/contraction.h"
#include "lowering/promotion.h"

namespace torch_tpu::lowering {

using namespace stablehlo;

namespace {

// What a mask's two dimensions are.
enum MaskType { kAttention = 0, kPadding = 1, kGeneric = 2 };

// x [..., in] times weight [out, in] plus bias, in the computing type of x.
Value linear(Value x, Value weight, Value bias) {
  const Value y = dot(x, weight, {.lhs_contracting = {x.rank() - 1}, .rhs_contracting = {1}});
  return add(y, as(bias, y.dtype(), y.dims()));
}

// bool [batch, heads, rows, keys]: true where a key is hidden.
Value hidden_keys(Value mask, std::optional<int64_t> type, const Dims& dims) {
  if (!is_bool(mask.dtype())) mask = ne(mask, full_like(mask, 0));
  if (mask.rank() == 2 && type == kPadding) return broadcast_in_dim(mask, dims, {0, 3});
  if (mask.rank() == 2 && type == kAttention) return broadcast_in_dim(mask, dims, {2, 3});
  return broadcast_to(mask, dims);
}

// Along the last dimension; hidden keys weigh nothing.
Value masked_softmax(Value scores, Value hidden) {
  const int64_t last = scores.rank() - 1;
  if (hidden) {
    const double low = -std::numeric_limits<double>::infinity();
    scores = select(hidden, full_like(scores, low), scores);
  }
  const auto across = [&](Value row) { return broadcast_to(expand_dim(row, last), scores.dims()); };
  const Value weights = exponential(subtract(scores, across(reduce_max(scores, {last}))));
  return divide(weights, across(reduce_sum(weights, {last})));
}

struct Projections {
  Value qkv_weight, qkv_bias, out_weight, out_bias;
  int64_t heads = 0;
  Value mask;
  std::optional<int64_t> mask_type;
};

Projections projections(const Call& call, const char* heads) {
  Projections p{call.tensor("qkv_weight"),
                call.tensor("qkv_bias"),
                call.tensor("proj_weight"),
                call.tensor("proj_bias"),
                call.integer(heads),
                call.tensor_or_empty("mask"),
                std::nullopt};
  if (call.has("mask_type")) p.mask_type = call.integer("mask_type");
  return p;
}

// The i-th of query, key and value: [batch, heads, rows, width].
Value project(Value x, const Projections& p, int64_t i) {
  const int64_t embedding = p.qkv_weight.dim(0) / 3;
  const int64_t from = i * embedding, to = from + embedding;
  const Value y =
      linear(x, slice_dim(p.qkv_weight, 0, from, to), slice_dim(p.qkv_bias, 0, from, to));
  const Value split = reshape(y, {x.dim(0), x.dim(1), p.heads, embedding / p.heads});
  return transpose(convert(split, x.dtype()), {0, 2, 1, 3});
}

struct Attended {
  Value out;      // [batch, rows, embedding]
  Value weights;  // [batch, heads, rows, keys]
};

Attended attend(Value query, Value key, Value value, const Projections& p) {
  const Value q = project(query, p, 0), k = project(key, p, 1), v = project(value, p, 2);
  const double scale = 1.0 / std::sqrt(static_cast<double>(q.dim(3)));
  Value scores = dot(q, k, {{0, 1}, {0, 1}, {3}, {3}});
  scores = multiply(scores, full_like(scores, scale));
  const Value hidden = p.mask ? hidden_keys(p.mask, p.mask_type, scores.dims()) : Value();
  const Value weights = masked_softmax(scores, hidden);
  const Value mixed = dot(convert(weights, v.dtype()), v, {{0, 1}, {0, 1}, {3}, {2}});
  const Value joined = reshape(transpose(convert(mixed, query.dtype()), {0, 2, 1, 3}),
                               {query.dim(0), query.dim(1), p.qkv_weight.dim(0) / 3});
  return {linear(joined, p.out_weight, p.out_bias), weights};
}

void require_plain(Value x, const char* op) {
  if (x.rank() != 3 || !is_float(x.dtype())) {
    throw Unsupported(std::string(op) + ": expected floating point [batch, rows, embedding]");
  }
}

Values multi_head_attention(Call& call) {
  const Value query = call.tensor("query");
  require_plain(query, "_native_multi_head_attention");
  const Attended a =
      attend(query, call.tensor("key"), call.tensor("value"), projections(call, "num_head"));
  Values results = {convert(a.out, query.dtype()), Value()};
  if (call.boolean("need_weights", true)) {
    Value weights = a.weights;
    if (call.boolean("average_attn_weights", true)) {
      const Value sum = reduce_sum(weights, {1});
      weights = divide(sum, full_like(sum, static_cast<double>(a.weights.dim(1))));
    }
    results[1] = convert(weights, query.dtype());
  }
  return results;
}

Value layer_norm(Value x, Value weight, Value bias, Value epsilon) {
  const int64_t last = x.rank() - 1;
  const double count = static_cast<double>(x.dim(last));
  const auto mean = [&](Value v) {
    const Value sum = reduce_sum(v, {last});
    return expand_dim(divide(sum, full_like(sum, count)), last);
  };
  const Value centered = subtract(x, broadcast_to(mean(x), x.dims()));
  const Value variance = mean(multiply(centered, centered));
  const Value scale = rsqrt(add(variance, broadcast_to(epsilon, variance.dims())));
  const Value normal = multiply(centered, broadcast_to(scale, x.dims()));
  return add(multiply(normal, as(weight, x.dtype(), x.dims())), as(bias, x.dtype(), x.dims()));
}

Value activate(Value x, bool gelu) {
  if (!gelu) return maximum(x, full_like(x, 0.0));
  const Value half = full_like(x, 0.5);
  const Value cdf = add(half, multiply(half, erf(multiply(x, full_like(x, std::sqrt(0.5))))));
  return multiply(x, cdf);
}

// Residuals and norms are kept in `type`; what goes into a product is rounded to the weights' type.
Values encoder_layer(Call& call) {
  const Value source = call.tensor("src");
  require_plain(source, "_transformer_encoder_layer_fwd");
  const ElementType type = compute_type(source.dtype());
  const Value epsilon = call.number("eps", type);
  const bool norm_first = call.boolean("norm_first");
  const auto norm = [&](Value x, const char* weight, const char* bias) {
    return layer_norm(x, call.tensor(weight), call.tensor(bias), epsilon);
  };
  const auto narrow = [&](Value x) { return convert(x, source.dtype()); };

  const Value x = convert(source, type);
  const Value before = narrow(norm_first ? norm(x, "norm_weight_1", "norm_bias_1") : x);
  const Attended attended = attend(before, before, before, projections(call, "num_heads"));
  Value middle = add(convert(attended.out, type), x);
  if (!norm_first) middle = norm(middle, "norm_weight_1", "norm_bias_1");

  const Value feed = narrow(norm_first ? norm(middle, "norm_weight_2", "norm_bias_2") : middle);
  const Value wide = linear(feed, call.tensor("ffn_weight_1"), call.tensor("ffn_bias_1"));
  const Value active = narrow(activate(wide, call.boolean("use_gelu")));
  const Value fed = linear(active, call.tensor("ffn_weight_2"), call.tensor("ffn_bias_2"));
  Value out = add(convert(fed, type), middle);
  if (!norm_first) out = norm(out, "norm_weight_2", "norm_bias_2");
  return {convert(out, source.dtype())};
}

}  // namespace

void register_encoder_layer(Registry& r) {
  r.add("aten::_native_multi_head_attention", multi_head_attention);
  r.add("aten::_transformer_encoder_layer_fwd", encoder_layer);
}

}  // namespace torch_tpu::lowering
