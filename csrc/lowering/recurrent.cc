// The fused LSTM and GRU cells: what follows the two matrix products of a step. torch.nn.LSTM and
// torch.nn.GRU call one per time step on devices that are not the CPU.
#include "lowering/families.h"
#include "lowering/promotion.h"

namespace torch_tpu::lowering {

using namespace stablehlo;

namespace {

// Everything is computed in `type` and rounded to `dtype`.
struct Cell {
  ElementType dtype, type;

  Value in(Value x) const { return convert(x, type); }
  Value out(Value x) const { return convert(x, dtype); }
};

Cell cell(Value x) {
  if (!is_float(x.dtype())) throw Unsupported("fused RNN cell: expected floating point gates");
  return {x.dtype(), compute_type(x.dtype())};
}

Value one_minus(Value x) { return subtract(full_like(x, 1.0), x); }

// The derivative of the logistic function and of tanh, from their results.
Value logistic_slope(Value y) { return multiply(y, one_minus(y)); }
Value tanh_slope(Value y) { return one_minus(multiply(y, y)); }

// Columns [i * width, (i + 1) * width).
Value gate(Value gates, int64_t i, int64_t width) {
  return slice_dim(gates, 1, i * width, (i + 1) * width);
}

Value with_bias(const Call& call, const Cell& c, const char* gates, const char* bias) {
  const Value x = c.in(call.tensor(gates));
  if (!call.has(bias)) return x;
  return add(x, as(call.tensor(bias), c.type, x.dims()));
}

Value bias_gradient(const Cell& c, Value gates) { return c.out(reduce_sum(gates, {0})); }

// -> hidden state, cell state, workspace: the activated gates, for the backward
Values lstm_cell(Call& call) {
  const Cell c = cell(call.tensor("input_gates"));
  const Value gates = add(with_bias(call, c, "input_gates", "input_bias"),
                          with_bias(call, c, "hidden_gates", "hidden_bias"));
  const Value before = c.in(call.tensor("cx"));
  const int64_t width = before.dim(1);
  const Value input = logistic(gate(gates, 0, width));
  const Value forget = logistic(gate(gates, 1, width));
  const Value update = tanh(gate(gates, 2, width));
  const Value output = logistic(gate(gates, 3, width));
  const Value after = add(multiply(forget, before), multiply(input, update));
  const Value hidden = multiply(output, tanh(after));
  return {c.out(hidden), c.out(after), c.out(concatenate({input, forget, update, output}, 1))};
}

Values lstm_cell_backward(Call& call) {
  const Value workspace = call.tensor("workspace");
  const Cell c = cell(workspace);
  const Value saved = c.in(workspace);
  const Value before = c.in(call.tensor("cx"));
  const int64_t width = before.dim(1);
  const Value input = gate(saved, 0, width), forget = gate(saved, 1, width);
  const Value update = gate(saved, 2, width), output = gate(saved, 3, width);
  const Value squashed = tanh(c.in(call.tensor("cy")));
  const auto grad = [&](const char* name) {
    return call.has(name) ? c.in(call.tensor(name)) : full_like(before, 0.0);
  };
  const Value grad_hidden = grad("grad_hy");
  const Value grad_cell =
      add(multiply(multiply(grad_hidden, output), tanh_slope(squashed)), grad("grad_cy"));
  const Value gates =
      concatenate({multiply(multiply(grad_cell, update), logistic_slope(input)),
                   multiply(multiply(grad_cell, before), logistic_slope(forget)),
                   multiply(multiply(grad_cell, input), tanh_slope(update)),
                   multiply(multiply(grad_hidden, squashed), logistic_slope(output))},
                  1);
  Values grads = {c.out(gates), c.out(multiply(grad_cell, forget)), Value()};
  if (call.boolean("has_bias")) grads[2] = bias_gradient(c, gates);
  return grads;
}

// -> hidden state, workspace: reset, update and new gates, the old state, the hidden part of new
Values gru_cell(Call& call) {
  const Cell c = cell(call.tensor("input_gates"));
  const Value from_input = with_bias(call, c, "input_gates", "input_bias");
  const Value from_hidden = with_bias(call, c, "hidden_gates", "hidden_bias");
  const Value before = c.in(call.tensor("hx"));
  const int64_t width = before.dim(1);
  const auto both = [&](int64_t i) {
    return add(gate(from_input, i, width), gate(from_hidden, i, width));
  };
  const Value reset = logistic(both(0));
  const Value keep = logistic(both(1));
  const Value hidden = gate(from_hidden, 2, width);
  const Value fresh = tanh(add(gate(from_input, 2, width), multiply(reset, hidden)));
  const Value after = add(fresh, multiply(keep, subtract(before, fresh)));
  return {c.out(after), c.out(concatenate({reset, keep, fresh, before, hidden}, 1))};
}

Values gru_cell_backward(Call& call) {
  const Value workspace = call.tensor("workspace");
  const Cell c = cell(workspace);
  const Value saved = c.in(workspace);
  const int64_t width = saved.dim(1) / 5;
  const Value reset = gate(saved, 0, width), keep = gate(saved, 1, width);
  const Value fresh = gate(saved, 2, width), before = gate(saved, 3, width);
  const Value hidden = gate(saved, 4, width);
  const Value grad = c.in(call.tensor("grad_hy"));
  const Value grad_keep = multiply(multiply(grad, subtract(before, fresh)), logistic_slope(keep));
  const Value grad_fresh = multiply(multiply(grad, one_minus(keep)), tanh_slope(fresh));
  const Value grad_reset = multiply(multiply(grad_fresh, hidden), logistic_slope(reset));
  const Value input_gates = concatenate({grad_reset, grad_keep, grad_fresh}, 1);
  const Value hidden_gates = concatenate({grad_reset, grad_keep, multiply(grad_fresh, reset)}, 1);
  Values grads = {c.out(input_gates), c.out(hidden_gates), c.out(multiply(grad, keep)), Value(),
                  Value()};
  if (call.boolean("has_bias")) {
    grads[3] = bias_gradient(c, input_gates);
    grads[4] = bias_gradient(c, hidden_gates);
  }
  return grads;
}

}  // namespace

void register_recurrent(Registry& r) {
  // The cells' meta kernels fail without biases.
  r.add("aten::_thnn_fused_lstm_cell", lstm_cell, {.own_types = true});
  r.add("aten::_thnn_fused_lstm_cell_backward_impl", lstm_cell_backward);
  r.add("aten::_thnn_fused_gru_cell", gru_cell, {.own_types = true});
  r.add("aten::_thnn_fused_gru_cell_backward", gru_cell_backward);
}

}  // namespace torch_tpu::lowering
