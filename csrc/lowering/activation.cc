// Activation functions and their derivatives.
#include <cmath>
#include <numbers>

#include "lowering/expression.h"
#include "lowering/families.h"
#include "lowering/promotion.h"
#include "lowering/random.h"

namespace torch_tpu::lowering {

namespace sh = stablehlo;

namespace {

constexpr double kSqrt2 = std::numbers::sqrt2;
constexpr double kInvSqrtPi = std::numbers::inv_sqrtpi;

using Names = std::initializer_list<std::string_view>;

// Tensor arguments in the type the function computes in.
Values inputs(const Call& call, Names names) {
  return broadcast_arguments(call, names, compute_type(result_type(call, names)));
}

Value input(const Call& call, std::string_view name = "self") {
  const Value x = call.tensor(name);
  return sh::convert(x, compute_type(x.dtype()));
}

// A number argument beside `like`.
Value number(const Call& call, std::string_view name, Value like) {
  return sh::broadcast_to(call.number(name, like.dtype()), like.dims());
}

// --- Functions of the input alone ---------------------------------------------------------------

Value silu(Value x) { return x * logistic(x); }

Value silu_backward(Value g, Value x) {
  const Value s = logistic(x);
  return g * s * (1.0 + x * (1.0 - s));
}

Value softplus_of_exp(Value x) { return log_plus_one(exponential(x)); }

Value mish(Value x) { return x * tanh(softplus_of_exp(x)); }

Value mish_backward(Value g, Value x) {
  const Value t = tanh(softplus_of_exp(x));
  return g * (t + x * logistic(x) * (1.0 - t * t));
}

// x + 3 held between 0 and 6.
Value hard_ramp(Value x) {
  return minimum(maximum(x + 3.0, constant_like(x, 0.0)), constant_like(x, 6.0));
}

Value hardsigmoid(Value x) { return hard_ramp(x) / 6.0; }

Value hardsigmoid_backward(Value g, Value x) {
  return choose((x > -3.0) & (x < 3.0), g / 6.0, 0.0);
}

Value hardswish(Value x) { return x * hard_ramp(x) / 6.0; }

Value hardswish_backward(Value g, Value x) {
  const Value inside = g * (x / 3.0 + 0.5);
  return choose(x <= -3.0, 0.0, choose(x < 3.0, inside, g));
}

Value conjugate(Value y) {
  return sh::is_complex(y.dtype()) ? sh::complex(sh::real(y), -sh::imag(y)) : y;
}

Value sigmoid_backward(Value g, Value y) { return g * conjugate((1.0 - y) * y); }
Value tanh_backward(Value g, Value y) { return g * conjugate(1.0 - y * y); }

struct UnaryEntry {
  const char* op;
  Value (*function)(Value);
};

constexpr UnaryEntry kUnary[] = {
    {"aten::silu", silu},
    {"aten::mish", mish},
    {"aten::hardsigmoid", hardsigmoid},
    {"aten::hardswish", hardswish},
};

struct BackwardEntry {
  const char* op;
  const char* saved;  // what the derivative is a function of
  Value (*function)(Value gradient, Value saved);
};

constexpr BackwardEntry kBackward[] = {
    {"aten::silu_backward", "self", silu_backward},
    {"aten::mish_backward", "self", mish_backward},
    {"aten::hardsigmoid_backward", "self", hardsigmoid_backward},
    {"aten::hardswish_backward", "self", hardswish_backward},
    {"aten::sigmoid_backward", "output", sigmoid_backward},
    {"aten::tanh_backward", "output", tanh_backward},
};

// --- GELU ---------------------------------------------------------------------------------------

constexpr double kCubic = 0.044715;
constexpr double kTanhScale = kSqrt2 * kInvSqrtPi;  // sqrt(2 / pi)

Value gelu_tanh_argument(Value x) { return kTanhScale * (x + kCubic * x * x * x); }

Values gelu_rule(Call& call) {
  const Value x = input(call);
  if (call.string("approximate", "none") == "tanh") {
    return {0.5 * x * (1.0 + tanh(gelu_tanh_argument(x)))};
  }
  return {0.5 * x * (1.0 + erf(x * (1.0 / kSqrt2)))};
}

Values gelu_backward_rule(Call& call) {
  const Values v = inputs(call, {"grad_output", "self"});
  const Value g = v[0], x = v[1];
  if (call.string("approximate", "none") == "tanh") {
    const Value t = tanh(gelu_tanh_argument(x));
    const Value slope = kTanhScale * (1.0 + 3.0 * kCubic * x * x);
    return {g * (0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * slope)};
  }
  const Value cdf = 0.5 * (1.0 + erf(x * (1.0 / kSqrt2)));
  const Value pdf = exponential(-0.5 * x * x) * (0.5 * kSqrt2 * kInvSqrtPi);
  return {g * (cdf + x * pdf)};
}

// --- With parameters ----------------------------------------------------------------------------

// x for x > 0, else scale * alpha * (exp(input_scale x) - 1), times scale.
Values elu_rule(Call& call) {
  const Value x = input(call);
  const Value scale = number(call, "scale", x);
  const Value negative = exponential_minus_one(x * number(call, "input_scale", x)) *
                         (number(call, "alpha", x) * scale);
  return {choose(x > 0.0, x * scale, choose(is_nan(x), x, negative))};
}

Values elu_backward_rule(Call& call) {
  const Values v = inputs(call, {"grad_output", "self_or_result"});
  const Value g = v[0], saved = v[1];
  const Value scale = number(call, "scale", g);
  const Value input_scale = number(call, "input_scale", g);
  const Value factor = number(call, "alpha", g) * scale;
  const Value negative = call.boolean("is_result")
                             ? g * input_scale * (saved + factor)
                             : g * input_scale * factor * exponential(saved * input_scale);
  return {choose(saved <= 0.0, negative, g * scale)};
}

Values celu_rule(Call& call) {
  const Value x = input(call);
  const Value alpha = number(call, "alpha", x);
  return {choose(x > 0.0, x, alpha * exponential_minus_one(x / alpha))};
}

Values leaky_relu_rule(Call& call) {
  const Value x = input(call);
  return {choose(x > 0.0, x, x * number(call, "negative_slope", x))};
}

Values leaky_relu_backward_rule(Call& call) {
  const Values v = inputs(call, {"grad_output", "self"});
  return {choose(v[1] > 0.0, v[0], v[0] * number(call, "negative_slope", v[0]))};
}

Values hardtanh_rule(Call& call) {
  const Value x = input(call);
  return {minimum(maximum(x, number(call, "min_val", x)), number(call, "max_val", x))};
}

Values hardtanh_backward_rule(Call& call) {
  const Values v = inputs(call, {"grad_output", "self"});
  const Value g = v[0], x = v[1];
  const Value outside = (x <= number(call, "min_val", x)) | (x >= number(call, "max_val", x));
  return {choose(outside, 0.0, g)};
}

Values softplus_rule(Call& call) {
  const Value x = input(call);
  const Value beta = number(call, "beta", x);
  const Value scaled = x * beta;
  const Value linear = scaled > number(call, "threshold", x);
  return {choose(linear, x, softplus_of_exp(scaled) / beta)};
}

Values softplus_backward_rule(Call& call) {
  const Values v = inputs(call, {"grad_output", "self"});
  const Value g = v[0], scaled = v[1] * number(call, "beta", g);
  const Value linear = scaled > number(call, "threshold", g);
  return {choose(linear, g, g * logistic(scaled))};
}

Values softshrink_rule(Call& call) {
  const Value x = input(call);
  const Value lambda = number(call, "lambd", x);
  const Value inside = choose(is_nan(x), x, 0.0);
  return {choose(x > lambda, x - lambda, choose(x < -lambda, x + lambda, inside))};
}

Values hardshrink_rule(Call& call) {
  const Value x = input(call);
  const Value lambda = number(call, "lambd", x);
  return {choose((x >= -lambda) & (x <= lambda), 0.0, x)};
}

// The same for soft and hard shrinkage; they name the gradient differently.
Values shrink_backward_rule(Call& call) {
  const Values v = inputs(call, {call.has("grad_out") ? "grad_out" : "grad_output", "self"});
  const Value g = v[0], x = v[1], lambda = number(call, "lambd", x);
  return {choose((x >= -lambda) & (x <= lambda), 0.0, g)};
}

Values threshold_rule(Call& call) {
  const Value x = input(call);
  return {choose(x <= number(call, "threshold", x), number(call, "value", x), x)};
}

Values threshold_backward_rule(Call& call) {
  const Values v = inputs(call, {"grad_output", "self"});
  return {choose(v[1] <= number(call, "threshold", v[1]), 0.0, v[0])};
}

Values logit_backward_rule(Call& call) {
  const Values v = inputs(call, {"grad_output", "self"});
  const Value g = v[0], x = v[1];
  const Value slope = g / (x * (1.0 - x));
  const Value outside_domain = choose((x < 0.0) | (x > 1.0), NAN, slope);
  if (!call.has("eps")) return {outside_domain};
  const Value eps = number(call, "eps", x);
  const Value clipped = choose((x < eps) | (x > 1.0 - eps), 0.0, slope);
  return {choose(eps < 0.0, outside_domain, clipped)};
}

Values prelu_rule(Call& call) {
  const Values v = inputs(call, {"self", "weight"});
  return {choose(v[0] > 0.0, v[0], v[0] * v[1])};
}

Values prelu_backward_rule(Call& call) {
  const Values v = inputs(call, {"grad_output", "self", "weight"});
  const Value g = v[0], x = v[1], positive = x > 0.0;
  return {choose(positive, g, g * v[2]), choose(positive, 0.0, g * x)};
}

// --- Randomized leaky ReLU ----------------------------------------------------------------------

Value mean_slope(const Call& call, Value like) {
  return 0.5 * (number(call, "lower", like) + number(call, "upper", like));
}

// In training, the slope of each negative element is drawn, and `noise` remembers it.
Values rrelu_rule(Call& call) {
  const Value x = input(call);
  Value output, noise;
  if (call.boolean("training")) {
    const ElementType type = x.dtype();
    Random random(call, Words::uniform(type) * x.numel());
    const Value lower = number(call, "lower", x);
    const Value slope = lower + random.uniform(type, x.dims()) * (number(call, "upper", x) - lower);
    noise = choose(x <= 0.0, slope, 1.0);
    output = x * noise;
  } else {
    output = choose(x > 0.0, x, x * mean_slope(call, x));
  }
  // Results go to the written arguments in schema order, and `noise` stands before `out`.
  if (call.overload() == "out") return {noise, output};
  return {output, noise};
}

Values rrelu_backward_rule(Call& call) {
  const Values v = inputs(call, {"grad_output", "self", "noise"});
  const Value g = v[0];
  const Value fixed = choose(v[1] > 0.0, g, g * mean_slope(call, g));
  if (!call.boolean("training")) return {fixed};
  const Value random = (number(call, "upper", g) - number(call, "lower", g)) > 1e-6;
  return {choose(random, g * v[2], fixed)};
}

// --- Gated linear unit --------------------------------------------------------------------------

struct Halves {
  Value first, second;
  int64_t dim;
};

Halves halves(Value x, int64_t dim) {
  const int64_t d = wrap_dim(dim, x.rank());
  const int64_t size = x.dim(d);
  return {sh::slice_dim(x, d, 0, size / 2), sh::slice_dim(x, d, size / 2, size), d};
}

Values glu_rule(Call& call) {
  const Halves x = halves(input(call), call.integer_or("dim", -1));
  return {x.first * logistic(x.second)};
}

Values glu_backward_rule(Call& call) {
  const Halves x = halves(input(call), call.integer("dim"));
  const Value g = input(call, "grad_output");
  const Value gate = logistic(x.second);
  return {sh::concatenate({g * gate, g * x.first * gate * (1.0 - gate)}, x.dim)};
}

Values glu_jvp_rule(Call& call) {
  const Halves x = halves(input(call, "x"), call.integer("dim"));
  const Halves dx = halves(input(call, "dx"), call.integer("dim"));
  const Value gate = logistic(x.second);
  return {dx.first * gate + input(call, "glu") * (1.0 - gate) * dx.second};
}

// --- Log sigmoid --------------------------------------------------------------------------------

Values log_sigmoid_forward_rule(Call& call) {
  const Value x = input(call);
  const Value buffer = exponential(-abs(x));
  const Value output = minimum(x, constant_like(x, 0.0)) - log_plus_one(buffer);
  // Accelerators get an empty buffer: the backward pass does without.
  if (call.num_outputs() > 1 && call.output(1).dims != x.dims()) {
    return {output, sh::splat(call.builder(), {x.dtype(), call.output(1).dims}, 0.0)};
  }
  return {output, buffer};
}

Values log_sigmoid_backward_rule(Call& call) {
  const Values v = inputs(call, {"grad_output", "self"});
  return {v[0] * logistic(-v[1])};
}

struct RuleRow {
  const char* op;
  Values (*rule)(Call&);
};

constexpr RuleRow kRules[] = {
    {"aten::gelu", gelu_rule},
    {"aten::gelu_backward", gelu_backward_rule},
    {"aten::elu", elu_rule},
    {"aten::elu_backward", elu_backward_rule},
    {"aten::celu", celu_rule},
    {"aten::leaky_relu", leaky_relu_rule},
    {"aten::leaky_relu_backward", leaky_relu_backward_rule},
    {"aten::hardtanh", hardtanh_rule},
    {"aten::hardtanh_backward", hardtanh_backward_rule},
    {"aten::softplus", softplus_rule},
    {"aten::softplus_backward", softplus_backward_rule},
    {"aten::softshrink", softshrink_rule},
    {"aten::softshrink_backward", shrink_backward_rule},
    {"aten::hardshrink", hardshrink_rule},
    {"aten::hardshrink_backward", shrink_backward_rule},
    {"aten::threshold", threshold_rule},
    {"aten::threshold_backward", threshold_backward_rule},
    {"aten::logit_backward", logit_backward_rule},
    {"aten::_prelu_kernel", prelu_rule},
    {"aten::_prelu_kernel_backward", prelu_backward_rule},
    {"aten::rrelu_with_noise", rrelu_rule},
    {"aten::rrelu_with_noise_backward", rrelu_backward_rule},
    {"aten::glu", glu_rule},
    {"aten::glu_backward", glu_backward_rule},
    {"aten::glu_jvp", glu_jvp_rule},
    {"aten::log_sigmoid_forward", log_sigmoid_forward_rule},
    {"aten::log_sigmoid_backward", log_sigmoid_backward_rule},
};

}  // namespace

void register_activation(Registry& r) {
  for (const UnaryEntry& entry : kUnary) {
    r.add(entry.op, [entry](Call& call) -> Values { return {entry.function(input(call))}; });
  }
  for (const BackwardEntry& entry : kBackward) {
    r.add(entry.op, [entry](Call& call) -> Values {
      const Values v = inputs(call, {"grad_output", entry.saved});
      return {entry.function(v[0], v[1])};
    });
  }
  for (const RuleRow& row : kRules) r.add(row.op, row.rule);
}

}  // namespace torch_tpu::lowering
