// Scaled dot product attention, forward and backward, one program each. Scores and softmax are
// float32 whatever the inputs are.
#include <cmath>
#include <limits>

#include "lowering/contraction.h"
#include "lowering/encoder_layer.h"
#include "lowering/families.h"
#include "lowering/promotion.h"

namespace torch_tpu::lowering {

using namespace stablehlo;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The inputs as [batch, kv_heads, rows, depth]. Query heads which share a key head (grouped
// query attention) are rows of the same matrix, so keys and values are never repeated.
struct Attention {
  Value query, key, value;
  Dims query_dims, key_dims, value_dims;  // broadcast, but not flattened: [..., heads, rows, depth]
  Dims leading;                           // of the query: all but the last two
  int64_t query_rows = 0, key_rows = 0;
  ElementType type = ElementType::kF32;  // of the softmax

  Dims score_dims() const {
    Dims dims = leading;
    dims.insert(dims.end(), {query_rows, key_rows});
    return dims;
  }
  Dims flat_score_dims() const { return {query.dim(0), query.dim(1), query.dim(2), key_rows}; }
};

Dims head(const Dims& dims, size_t drop) { return Dims(dims.begin(), dims.end() - drop); }

int64_t at_end(const Dims& dims, size_t from_end) { return dims[dims.size() - from_end]; }

Dims joined(Dims dims, std::initializer_list<int64_t> more) {
  dims.insert(dims.end(), more);
  return dims;
}

Attention prepare(const Call& call) {
  Attention a;
  Value q = call.tensor("query"), k = call.tensor("key"), v = call.tensor("value");
  if (q.rank() != k.rank() || q.rank() != v.rank() || q.rank() < 2 || !is_float(q.dtype())) {
    throw Unsupported(
        "scaled_dot_product_attention: expected floating point query, key and "
        "value of the same rank, at least 2");
  }
  if (q.rank() == 2) {
    q = expand_dim(q, 0);
    k = expand_dim(k, 0);
    v = expand_dim(v, 0);
  }
  const Dims batch = broadcast_shapes({head(q.dims(), 3), head(k.dims(), 3), head(v.dims(), 3)});
  const int64_t key_heads = at_end(k.dims(), 3), value_heads = at_end(v.dims(), 3);
  const int64_t heads = key_heads == 1 ? value_heads : key_heads;
  int64_t query_heads = at_end(q.dims(), 3);
  if (query_heads == 1) query_heads = heads;
  if ((value_heads != heads && value_heads != 1) || (heads > 0 && query_heads % heads != 0)) {
    throw Unsupported(
        "scaled_dot_product_attention: the number of query heads is not a multiple "
        "of the number of key and value heads");
  }
  a.query_rows = at_end(q.dims(), 2);
  a.key_rows = at_end(k.dims(), 2);
  a.leading = joined(batch, {query_heads});
  a.query_dims = joined(batch, {query_heads, a.query_rows, at_end(q.dims(), 1)});
  a.key_dims = joined(batch, {heads, a.key_rows, at_end(k.dims(), 1)});
  a.value_dims = joined(batch, {heads, a.key_rows, at_end(v.dims(), 1)});
  const int64_t flat = product(batch);
  const int64_t group = heads > 0 ? query_heads / heads : 1;
  a.query = reshape(broadcast_to(q, a.query_dims),
                    {flat, heads, group * a.query_rows, at_end(q.dims(), 1)});
  a.key = reshape(broadcast_to(k, a.key_dims), {flat, heads, a.key_rows, at_end(k.dims(), 1)});
  a.value = reshape(broadcast_to(v, a.value_dims), {flat, heads, a.key_rows, at_end(v.dims(), 1)});
  a.type = compute_type(q.dtype());
  return a;
}

const DotDims kTimesTransposed{{0, 1}, {0, 1}, {3}, {3}};  // a b^T
const DotDims kTimes{{0, 1}, {0, 1}, {3}, {2}};            // a b
const DotDims kTransposedTimes{{0, 1}, {0, 1}, {2}, {2}};  // a^T b

Value filled(Value like, double value) { return full_like(like, value); }

Value scale_of(const Call& call, const Attention& a) {
  const double depth = static_cast<double>(std::max<int64_t>(a.query.dim(3), 1));
  return call.number_or("scale", 1.0 / std::sqrt(depth), a.type);
}

// What is added to the scores, or says which are seen. The CPU's operators call it a mask.
Value bias_of(const Call& call) {
  const Value bias = call.tensor_or_empty("attn_bias");
  return bias ? bias : call.tensor_or_empty("attn_mask");
}

// softmax's argument, in score_dims().
Value scores(const Call& call, const Attention& a) {
  Value s = convert(dot(a.query, a.key, kTimesTransposed), a.type);
  s = reshape(s, a.score_dims());
  s = multiply(s, broadcast_to(scale_of(call, a), s.dims()));
  if (const Value bias = bias_of(call)) {
    if (is_bool(bias.dtype())) {
      s = select(broadcast_to(bias, s.dims()), s, filled(s, -kInfinity));
    } else {
      s = add(s, as(bias, a.type, s.dims()));
    }
  }
  if (call.boolean("is_causal")) {
    const TensorType square{ElementType::kS32, {a.query_rows, a.key_rows}};
    Builder& b = s.builder();
    const Value seen = le(iota(b, square, 1), iota(b, square, 0));
    s = select(broadcast_to(seen, s.dims()), s, filled(s, -kInfinity));
  }
  return s;
}

// A value per row, for every key.
Value along_rows(Value per_row, const Dims& dims) {
  return broadcast_to(expand_dim(per_row, per_row.rank()), dims);
}

// What survives dropout, times 1 / (1 - p); all ones (no value) without dropout.
Value keep_factor(const Call& call, Value state, const Attention& a) {
  const double p = *call.known_number("dropout_p");
  const TensorType bits_type{ElementType::kU32, a.score_dims()};
  const Value bits = rng_bit_generator(state, bits_type)[1];
  const double threshold = std::min(p * 4294967296.0, 4294967295.0);
  const Value kept = ge(bits, full_like(bits, static_cast<int64_t>(threshold)));
  const Value one = splat(bits.builder(), {a.type, bits_type.dims}, p < 1 ? 1 / (1 - p) : 0.0);
  return select(kept, one, filled(one, 0));
}

bool drops(const Call& call) {
  const std::optional<double> p = call.known_number("dropout_p");
  return p && *p > 0;
}

Value attend(const Attention& a, Value weights) {
  const Value flat = reshape(convert(weights, a.value.dtype()), a.flat_score_dims());
  return reshape(convert(dot(flat, a.value, kTimes), a.type),
                 joined(a.leading, {a.query_rows, a.value.dim(3)}));
}

Value reduced_last(Value x, Value (*reduce)(Value, const Dims&)) {
  return reduce(x, {x.rank() - 1});
}

// Sums to divide by: a row of weights which are all 0 stays so.
Value one_for_zero(Value total) {
  return select(eq(total, filled(total, 0)), filled(total, 1), total);
}

struct Attended {
  Value out;
  Value logsumexp;  // of each row, in the type of the softmax
  Value seed, offset;
};

Attended attended(Call& call) {
  const Attention a = prepare(call);
  Builder& b = call.builder();
  const Value s = scores(call, a);
  const Value largest = reduced_last(s, reduce_max);
  // A row which sees no key has weights 0 and logsumexp -inf.
  const Value shift = select(eq(largest, filled(largest, -kInfinity)), filled(largest, 0), largest);
  Value weights = exponential(subtract(s, along_rows(shift, s.dims())));
  const Value total = reduced_last(weights, reduce_sum);
  Value seed = scalar(b, ElementType::kS64, 0), offset = seed;
  if (drops(call)) {
    const Value state = call.rng_state(s.numel());
    weights = multiply(weights, keep_factor(call, state, a));
    const Value words = bitcast_convert(state, ElementType::kS64);
    seed = reshape(slice(words, {0}, {1}), {});
    offset = reshape(slice(words, {1}, {2}), {});
  }
  Value out = attend(a, weights);
  out = divide(out, along_rows(one_for_zero(total), out.dims()));
  const Value query = call.tensor("query");
  Dims out_dims = query.rank() == 2 ? Dims{a.query_rows, a.value.dim(3)} : out.dims();
  Value logsumexp = add(shift, log(total));
  if (logsumexp.rank() == 2) logsumexp = expand_dim(logsumexp, 0);
  return {reshape(convert(out, query.dtype()), out_dims), logsumexp, seed, offset};
}

Values forward(Call& call) {
  const Attended a = attended(call);
  return {a.out,  convert(a.logsumexp, ElementType::kF32), Value(), Value(), a.seed, a.offset,
          Value()};
}

// Sums what broadcasting repeated, and drops leading dimensions of size 1.
Value sum_to(Value x, const Dims& dims) {
  Dims reduced;
  const int64_t extra = x.rank() - static_cast<int64_t>(dims.size());
  for (int64_t i = 0; i < x.rank(); ++i) {
    const bool repeated = i < extra || (dims[i - extra] == 1 && x.dim(i) != 1);
    if (repeated) reduced.push_back(i);
  }
  return reshape(reduced.empty() ? x : reduce_sum(x, reduced), dims);
}

Value gradient(Value flat, const Dims& broadcast, Value like) {
  return convert(sum_to(reshape(flat, broadcast), like.dims()), like.dtype());
}

// The softmax of the scores, once more. The forward pass's logsumexp is float32: beside scores as
// low as a bias may make them its logarithm is lost, and then it only keeps the exponential in
// range.
Value weights_of(const Call& call, const Attention& a, Value s) {
  Value shift;
  if (a.type == ElementType::kF32) {
    shift = reshape(call.tensor("logsumexp"), joined(a.leading, {a.query_rows}));
    shift = convert(shift, a.type);
  } else {
    shift = reduced_last(s, reduce_max);
  }
  const Value unseen = eq(shift, filled(shift, -kInfinity));
  shift = select(unseen, filled(shift, kInfinity), shift);  // exp(s - inf) = 0
  const Value weights = exponential(subtract(s, along_rows(shift, s.dims())));
  const Value bias = bias_of(call);
  if (a.type == ElementType::kF32 && (!bias || is_bool(bias.dtype()))) return weights;
  const Value total = one_for_zero(reduced_last(weights, reduce_sum));
  return divide(weights, along_rows(total, s.dims()));
}

// Of query, key, value and bias, as far as they are wanted.
Values gradients(Call& call, const std::vector<bool>& wanted) {
  const Attention a = prepare(call);
  const Value s = scores(call, a);
  const Value weights = weights_of(call, a, s);

  const Dims out_dims = joined(a.leading, {a.query_rows, a.value.dim(3)});
  const Value grad = reshape(call.tensor("grad_out"), out_dims);
  const Value out = reshape(call.tensor("out"), out_dims);
  const Value delta =
      reduced_last(multiply(convert(grad, a.type), convert(out, a.type)), reduce_sum);
  const Value flat_grad = reshape(convert(grad, a.value.dtype()),
                                  {a.query.dim(0), a.query.dim(1), a.query.dim(2), a.value.dim(3)});
  Value grad_weights = convert(dot(flat_grad, a.value, kTimesTransposed), a.type);
  grad_weights = reshape(grad_weights, a.score_dims());
  Value used = weights;
  if (drops(call)) {
    const auto word = [&](const char* name) {
      const Value x = convert(call.tensor(name), ElementType::kS64);
      return reshape(bitcast_convert(x, ElementType::kU64), {1});
    };
    const Value state = concatenate({word("philox_seed"), word("philox_offset")}, 0);
    const Value keep = keep_factor(call, state, a);
    used = multiply(used, keep);
    grad_weights = multiply(grad_weights, keep);
  }
  const Value grad_scores =
      multiply(weights, subtract(grad_weights, along_rows(delta, grad_weights.dims())));
  const Value scaled = multiply(grad_scores, broadcast_to(scale_of(call, a), s.dims()));
  const Value flat = reshape(convert(scaled, a.query.dtype()), a.flat_score_dims());
  const Value flat_used = reshape(convert(used, a.value.dtype()), a.flat_score_dims());

  Values grads(4);
  if (wanted[0]) grads[0] = gradient(dot(flat, a.key, kTimes), a.query_dims, call.tensor("query"));
  if (wanted[1]) {
    grads[1] = gradient(dot(flat, a.query, kTransposedTimes), a.key_dims, call.tensor("key"));
  }
  if (wanted[2]) {
    grads[2] =
        gradient(dot(flat_used, flat_grad, kTransposedTimes), a.value_dims, call.tensor("value"));
  }
  const Value bias = bias_of(call);
  if (wanted[3] && bias) grads[3] = convert(sum_to(grad_scores, bias.dims()), bias.dtype());
  return grads;
}

Values backward(Call& call) { return gradients(call, call.bools("grad_input_mask")); }

// The CPU's operators, which are in graphs that were traced with tensors of the CPU. They drop
// nothing.
void require_no_dropout(const Call& call) {
  if (drops(call)) throw Unsupported("attention for CPUs: expected a dropout probability of 0");
}

Values cpu_forward(Call& call) {
  require_no_dropout(call);
  const Attended a = attended(call);
  return {a.out, a.logsumexp};
}

Values cpu_backward(Call& call) {
  require_no_dropout(call);
  Values grads = gradients(call, {true, true, true, false});
  grads.pop_back();
  return grads;
}

}  // namespace

void register_attention(Registry& r) {
  register_encoder_layer(r);
  const RuleOptions options{.known_numbers = {"dropout_p"}};
  r.add("aten::_scaled_dot_product_fused_attention_overrideable", forward, options);
  r.add("aten::_scaled_dot_product_fused_attention_overrideable_backward", backward, options);
  r.add("aten::_scaled_dot_product_flash_attention_for_cpu", cpu_forward, options);
  r.add("aten::_scaled_dot_product_flash_attention_for_cpu_backward", cpu_backward, options);
}

}  // namespace torch_tpu::lowering
