#include "lowering/random.h"

#include <cmath>
#include <functional>
#include <limits>

#include "lowering/expression.h"
#include "lowering/families.h"
#include "lowering/promotion.h"
#include "lowering/scan.h"
#include "lowering/typed_rule.h"

namespace torch_tpu::lowering {

namespace sh = stablehlo;

namespace {

// What an operator fills: `self`, or a new tensor.
TensorType target(const Call& call) {
  if (call.num_outputs() > 0) return call.output();
  return call.tensor("self").type();
}

// A tensor or number argument in the given dtype and shape.
Value parameter(const Call& call, std::string_view name, ElementType dtype, const Dims& dims) {
  const auto* tensor = std::get_if<TensorArgument>(call.find(name));
  return as(tensor ? tensor->value : call.number(name, dtype), dtype, dims);
}

// Digits of the significand, the hidden one included.
int digits(ElementType dtype) {
  switch (sh::real_type(dtype)) {
    case ElementType::kBF16:
      return 8;
    case ElementType::kF16:
      return 11;
    case ElementType::kF64:
      return 53;
    default:
      return 24;
  }
}

Value uniform_in(Random& random, ElementType dtype, const Dims& dims) {
  return random.uniform(sampling_type(dtype), dims, digits(dtype));
}

// --- Continuous ---------------------------------------------------------------------------------

void require_floating(const Call& call, ElementType dtype) {
  if (!sh::is_float(dtype) && !sh::is_complex(dtype)) {
    throw Unsupported(call.op() + ": not a floating type");
  }
}

}  // namespace

void require_real(const Call& call, ElementType dtype) {
  if (!sh::is_float(dtype)) {
    throw InvalidArgument(call.op().substr(6) + " expects a tensor of floating-point numbers",
                          InvalidArgument::Kind::kNotImplemented);
  }
}

namespace {

int64_t uniform_words(const TensorType& type) {
  const int64_t parts = sh::is_complex(type.dtype) ? 2 : 1;
  return type.numel() * parts * Words::uniform(sampling_type(type.dtype));
}

// `part` once, or for the real and for the imaginary part.
Value in_parts(ElementType dtype, const std::function<Value()>& part) {
  if (!sh::is_complex(dtype)) return part();
  const Value re = part();
  return sh::complex(re, part());
}

Values unit_uniform(Call& call) {
  const TensorType type = target(call);
  require_floating(call, type.dtype);
  Random random(call, uniform_words(type));
  return {in_parts(type.dtype, [&] { return uniform_in(random, type.dtype, type.dims); })};
}

Values uniform(Call& call) {
  const TensorType type = target(call);
  require_floating(call, type.dtype);
  const ElementType real = sh::real_type(type.dtype), compute = sampling_type(type.dtype);
  Random random(call, uniform_words(type));
  if (call.is_known("from", 0) && call.is_known("to", 1)) {
    return {in_parts(type.dtype, [&] { return uniform_in(random, type.dtype, type.dims); })};
  }
  const auto bound = [&](std::string_view name) {
    return as(call.number(name, real), compute, type.dims);
  };
  const Value from = bound("from"), to = bound("to");
  return {in_parts(type.dtype, [&] {
    const Value scaled = uniform_in(random, type.dtype, type.dims) * (to - from) + from;
    // Rounding must not reach the end that the interval leaves out.
    const Value rounded = rounded_to(scaled, real);
    return sh::select(rounded < to, rounded, from);
  })};
}

Value standard_normal(Random& random, ElementType dtype, const Dims& dims) {
  // Real and imaginary part share the variance.
  return in_parts(dtype, [&] {
    const Value drawn = random.normal(sampling_type(dtype), dims);
    return sh::is_complex(dtype) ? drawn * std::sqrt(0.5) : drawn;
  });
}

int64_t normal_words(const TensorType& type) {
  const int64_t parts = sh::is_complex(type.dtype) ? 2 : 1;
  return type.numel() * parts * Words::normal(sampling_type(type.dtype));
}

Values unit_normal(Call& call) {
  const TensorType type = target(call);
  require_floating(call, type.dtype);
  Random random(call, normal_words(type));
  return {standard_normal(random, type.dtype, type.dims)};
}

// The result of normal() of tensors: their common shape.
TensorType normal_target(const Call& call) {
  if (call.num_outputs() > 0) return call.output();
  if (call.has("self")) return call.tensor("self").type();
  TensorType type;
  std::vector<Dims> shapes;
  for (const char* name : {"std", "mean"}) {
    if (const auto* t = std::get_if<TensorArgument>(call.find(name))) {
      type.dtype = t->value.dtype();
      shapes.push_back(t->value.dims());
    }
  }
  if (shapes.empty()) throw Unsupported("normal: the result's shape is not known");
  type.dims = sh::broadcast_shapes(shapes);
  return type;
}

Values normal(Call& call) {
  const TensorType type = normal_target(call);
  require_floating(call, type.dtype);
  if (const auto* std = std::get_if<TensorArgument>(call.find("std"))) {
    require_real(call, std->value.dtype());
  }
  Random random(call, normal_words(type));
  const Value unit = standard_normal(random, type.dtype, type.dims);
  const ElementType compute = unit.dtype();
  Value out = unit;
  if (!call.is_known("std", 1)) out = out * parameter(call, "std", compute, type.dims);
  if (!call.is_known("mean", 0)) out = out + parameter(call, "mean", compute, type.dims);
  return {out};
}

Values log_normal(Call& call) {
  const TensorType type = target(call);
  const ElementType compute = sampling_type(type.dtype);
  Random random(call, type.numel() * Words::normal(compute));
  const Value unit = random.normal(compute, type.dims);
  return {sh::exponential(unit * parameter(call, "std", compute, type.dims) +
                          parameter(call, "mean", compute, type.dims))};
}

Values exponential(Call& call) {
  const TensorType type = target(call);
  const ElementType compute = sampling_type(type.dtype);
  Random random(call, type.numel() * Words::exponential(compute));
  const Value unit = random.exponential(compute, type.dims);
  if (call.is_known("lambd", 1)) return {unit};
  return {unit / parameter(call, "lambd", compute, type.dims)};
}

Values cauchy(Call& call) {
  const TensorType type = target(call);
  const ElementType compute = sampling_type(type.dtype);
  Random random(call, type.numel() * Words::uniform(compute));
  return {random.cauchy(compute, type.dims) * parameter(call, "sigma", compute, type.dims) +
          parameter(call, "median", compute, type.dims)};
}

// --- Discrete -----------------------------------------------------------------------------------

Values geometric(Call& call) {
  // The number of trials up to a success is an exponential waiting time, rounded up.
  const TensorType type = target(call);
  const ElementType compute =
      sh::is_integer(type.dtype) ? ElementType::kF64 : sampling_type(type.dtype);
  Random random(call, type.numel() * Words::exponential(compute));
  const Value waiting = random.exponential(compute, type.dims);
  const Value rate = -sh::log_plus_one(-parameter(call, "p", compute, type.dims));
  return {sh::maximum(sh::ceil(waiting / rate), constant_like(waiting, 1))};
}

Values bernoulli(Call& call) {
  const TensorType type = target(call);
  if (sh::is_complex(type.dtype)) {
    throw InvalidArgument("bernoulli has no complex results",
                          InvalidArgument::Kind::kNotImplemented);
  }
  const std::string_view name = call.has("p") ? "p" : "self";
  const auto* given = std::get_if<TensorArgument>(call.find(name));
  const ElementType compute =
      given && given->value.dtype() == ElementType::kF64 ? ElementType::kF64 : ElementType::kF32;
  Random random(call, type.numel() * Words::uniform(compute));
  const Value unit = random.uniform(compute, type.dims);
  return {sh::convert(unit < parameter(call, name, compute, type.dims), type.dtype)};
}

Values native_dropout(Call& call) {
  const Value input = call.tensor("input");
  const ElementType compute = compute_type(input.dtype());
  if (!call.boolean("train", true)) {
    return {input, sh::splat(call.builder(), {ElementType::kPred, input.dims()}, true)};
  }
  if (!sh::is_float(input.dtype()) && !sh::is_complex(input.dtype())) {
    throw InvalidArgument("native_dropout expects a tensor of floating-point numbers");
  }
  Random random(call, input.numel() * Words::uniform(ElementType::kF32));
  const Value kept = 1.0 - call.number("p", ElementType::kF32);
  const Value mask =
      random.uniform(ElementType::kF32, input.dims()) < sh::broadcast_to(kept, input.dims());
  const Value scale = choose(equals(kept, 0.0), 0.0, 1.0 / kept);
  const Value scaled = sh::convert(input, compute) * as(scale, compute, input.dims());
  // Multiplication rather than selection: NaN stays NaN, as in PyTorch.
  return {scaled * sh::convert(mask, compute), mask};
}

Values native_dropout_backward(Call& call) {
  const Value grad = call.tensor("grad_output");
  // The scale is a float: it makes floats of other numbers.
  const ElementType type = to_floating(grad.dtype());
  const ElementType compute = compute_type(type);
  const Value result = sh::convert(grad, compute) * sh::convert(call.tensor("mask"), compute) *
                       as(call.number("scale", compute), compute, grad.dims());
  return {sh::convert(result, type)};
}

// The number of values random_() without bounds gives: 0 and up, all exact in the dtype.
uint64_t natural_range(ElementType dtype) {
  if (sh::is_bool(dtype)) return 2;
  if (sh::is_float(dtype)) return (uint64_t{1} << digits(dtype)) + 1;
  const int width = sh::bit_width(dtype);
  if (sh::is_unsigned_int(dtype)) return width == 64 ? 0 : uint64_t{1} << width;
  return uint64_t{1} << (width - 1);
}

Value integers(Random& random, ElementType dtype, const Dims& dims, int64_t from, uint64_t range) {
  const Value drawn = random.below(range, dims);
  constexpr int64_t kLimit = std::numeric_limits<int32_t>::max();
  const bool narrow = drawn.dtype() == ElementType::kU32 && range <= kLimit && from >= -kLimit &&
                      from <= kLimit - static_cast<int64_t>(range);
  const Value signed_ = sh::convert(drawn, narrow ? ElementType::kS32 : ElementType::kS64);
  const Value out = from == 0 ? signed_ : signed_ + sh::full_like(signed_, from);
  return sh::convert(out, dtype);
}

Values integers_in(Call& call, const TensorType& type, int64_t from, uint64_t range) {
  if (sh::is_complex(type.dtype)) throw Unsupported(call.op() + ": complex numbers");
  Random random(call, type.numel() * Words::below(range));
  return {integers(random, type.dtype, type.dims, from, range)};
}

// Whether a dtype has numbers as large as `value`; an integer dtype has them exactly.
bool reaches(ElementType dtype, int64_t value) {
  if (sh::is_bool(dtype)) return value == 0 || value == 1;
  if (dtype == ElementType::kF16) return std::abs(static_cast<double>(value)) <= 65504;
  if (!sh::is_integer(dtype)) return true;
  const int width = sh::bit_width(dtype);
  if (sh::is_unsigned_int(dtype)) return value >= 0 && (width == 64 || value >> width == 0);
  return width == 64 || (value >> (width - 1) == 0 || value >> (width - 1) == -1);
}

void require_reach(const Call& call, ElementType dtype, int64_t from, int64_t last) {
  if (!reaches(dtype, from) || !reaches(dtype, last)) {
    throw InvalidArgument(call.op().substr(6) + ": numbers from " + std::to_string(from) + " to " +
                          std::to_string(last) + " are out of bounds for the dtype");
  }
}

uint64_t distance(const Call& call, int64_t from, int64_t to) {
  if (from >= to) {
    throw InvalidArgument(call.op().substr(6) +
                          " expects 'from' to be less than 'to', but got from=" +
                          std::to_string(from) + " >= to=" + std::to_string(to));
  }
  return static_cast<uint64_t>(to) - static_cast<uint64_t>(from);
}

Values random_integers(Call& call) {
  const TensorType type = target(call);
  const int64_t from = call.integer_or("from", 0);
  if (call.has("to")) {
    const uint64_t range = distance(call, from, call.integer("to"));
    require_reach(call, type.dtype, from, call.integer("to") - 1);
    return integers_in(call, type, from, range);
  }
  if (!call.has("from")) return integers_in(call, type, 0, natural_range(type.dtype));
  if (from == std::numeric_limits<int64_t>::min()) return integers_in(call, type, from, 0);
  // From `from` to the largest value of the dtype.
  const uint64_t values = natural_range(type.dtype);
  return integers_in(call, type, from, values - static_cast<uint64_t>(from));
}

Values randint(Call& call) {
  const int64_t low = call.integer_or("low", 0);
  const uint64_t range = distance(call, low, call.integer("high"));
  require_reach(call, target(call).dtype, low, call.integer("high") - 1);
  return integers_in(call, target(call), low, range);
}

Values randperm(Call& call) {
  const int64_t n = call.integer("n");
  const ElementType dtype = target(call).dtype;
  if (sh::is_bool(dtype) || sh::is_complex(dtype)) {
    throw InvalidArgument("randperm has integers and floating-point numbers only",
                          InvalidArgument::Kind::kNotImplemented);
  }
  // Floating-point numbers are whole, one by one, up to where their digits end.
  const bool exact = dtype == ElementType::kF16   ? n <= (int64_t{1} << 11) + 1
                     : dtype == ElementType::kF32 ? n <= (int64_t{1} << 24) + 1
                                                  : reaches(dtype, n);
  if (!exact) {
    throw InvalidArgument("randperm: the dtype does not hold all numbers below " +
                          std::to_string(n));
  }
  Builder& b = call.builder();
  const Value positions = sh::iota(
      b, {n > std::numeric_limits<int32_t>::max() ? ElementType::kS64 : ElementType::kS32, {n}}, 0);
  if (n < 2) return {positions};
  // Equal keys would favour the first: make them rare.
  const ElementType key = n <= (1 << 12) ? ElementType::kU32 : ElementType::kU64;
  Random random(call, n * (key == ElementType::kU64 ? 2 : 1));
  return {sh::sort({random.bits(key, {n}), positions}, 0, true,
                   [](const Values& v) -> Values { return {sh::lt(v[0], v[1])}; })[1]};
}

// --- Categories ---------------------------------------------------------------------------------

Value index_of_maximum(Value scores) {
  Builder& b = scores.builder();
  const int64_t last = scores.rank() - 1;
  const Value positions = sh::iota(b, {ElementType::kS32, scores.dims()}, last);
  const Values init = {sh::lowest(b, {scores.dtype(), {}}), sh::scalar(b, ElementType::kS32, 0)};
  const Values best = sh::reduce({scores, positions}, init, {last}, [](const Values& v) -> Values {
    const Value first = (v[0] > v[2]) | (sh::eq(v[0], v[2]) & (v[1] <= v[3]));
    return {sh::select(first, v[0], v[2]), sh::select(first, v[1], v[3])};
  });
  return sh::expand_dim(best[1], last);
}

// Samples without replacement are the winners of a race of exponential waiting times.
Value race(Random& random, Value weights, int64_t winners) {
  const Value scores = weights / random.exponential(weights.dtype(), weights.dims());
  return winners == 1 ? index_of_maximum(scores) : sh::top_k(scores, winners)[1];
}

Value by_inverse_distribution(Random& random, Value weights, int64_t samples) {
  const int64_t rows = weights.dim(0), categories = weights.dim(1);
  // Categories without weight take over the sum before them, so that nothing falls on them
  // however the sums are rounded.
  const Value sums = running_max(choose(weights > 0.0, running_sum(weights, 1), 0.0), 1);
  const Value total = sh::slice_dim(sums, 1, categories - 1, categories);
  const Value at =
      random.uniform(weights.dtype(), {rows, samples}) * sh::broadcast_to(total, {rows, samples});
  const Dims all{rows, samples, categories};
  const Value passed =
      sh::broadcast_in_dim(sums, all, {0, 2}) <= sh::broadcast_in_dim(at, all, {0, 1});
  const Value index = sh::reduce_sum(sh::convert(passed, ElementType::kS32), {2});
  return sh::minimum(index, constant_like(index, static_cast<double>(categories - 1)));
}

Values multinomial(Call& call) {
  const Value self = call.tensor("self");
  const int64_t samples = call.integer("num_samples");
  const int64_t categories = self.dims().back();
  const int64_t rows = self.rank() == 1 ? 1 : self.dim(0);
  const bool replacement = call.boolean("replacement");
  const ElementType compute = sampling_type(self.dtype());
  if (!sh::is_float(self.dtype())) {
    throw InvalidArgument("multinomial only supports floating-point dtypes for input");
  }
  if (call.num_outputs() > 0 && call.output().dtype != ElementType::kS64) {
    throw InvalidArgument("multinomial expects an int64 tensor for its result");
  }
  if (categories > (int64_t{1} << 24)) {
    throw InvalidArgument("number of categories cannot exceed 2^24");
  }
  if (samples <= 0) throw InvalidArgument("cannot sample n_sample <= 0 samples");
  if (!replacement && samples > categories) {
    throw InvalidArgument(
        "cannot sample n_sample > prob_dist.size(-1) samples without replacement");
  }
  Dims out = self.dims();
  out.back() = samples;
  if (self.numel() == 0) return {sh::splat(call.builder(), {ElementType::kS64, out}, 0)};
  const Value weights = sh::reshape(sh::convert(self, compute), {rows, categories});
  const bool racing = !replacement || samples == 1;
  Random random(call, rows * (racing ? categories : samples) * Words::uniform(compute));
  const Value index =
      racing ? race(random, weights, samples) : by_inverse_distribution(random, weights, samples);
  return {sh::reshape(sh::convert(index, ElementType::kS64), out)};
}

}  // namespace

void register_random(Registry& r) {
  r.add("aten::uniform", uniform);
  r.add("aten::rand", unit_uniform);
  r.add("aten::rand_like", unit_uniform);
  r.add("aten::normal", normal);
  r.add("aten::normal_functional", normal);
  r.add("aten::randn", unit_normal);
  r.add("aten::randn_like", unit_normal);
  r.add("aten::log_normal", log_normal);
  r.add("aten::exponential", exponential);
  r.add("aten::cauchy", cauchy);
  r.add("aten::geometric", geometric);
  r.add("aten::bernoulli", bernoulli);
  r.add("aten::native_dropout", with_dtype_of("input", native_dropout));
  r.add("aten::native_dropout_backward", native_dropout_backward);
  r.add("aten::random", random_integers);
  r.add("aten::randint", randint);
  r.add("aten::randint_like", randint);
  r.add("aten::randperm", randperm);
  r.add("aten::multinomial", multinomial);
  register_random_rejection(r);
}

}  // namespace torch_tpu::lowering
