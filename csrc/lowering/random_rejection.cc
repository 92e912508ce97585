// Distributions sampled by proposing and rejecting until every element has a sample.
#include "lowering/expression.h"
#include "lowering/promotion.h"
#include "lowering/random.h"
#include "lowering/typed_rule.h"

namespace torch_tpu::lowering {

namespace sh = stablehlo;

namespace {

// For counts and proportions: log-probabilities of large counts cancel.
constexpr ElementType kReal = ElementType::kF64;

// A round makes proposals for all elements. It gets the loop's values (the parameters, then the
// method's own state) and returns the new state, the samples, and which of them are accepted.
struct Round {
  Values state;
  Value sample;
  Value accepted;
};
using Propose = std::function<Round(Random& random, const Values& parameters, const Values& state)>;

struct Method {
  Propose propose;
  int64_t words;   // per element and round
  int64_t rounds;  // after which the chance that one of 2^40 elements is left is nil

  int64_t words_for(Value like) const { return like.numel() * words * rounds; }
};

// Repeats rounds until all elements that `wanted` names have an accepted sample; the others, and
// those left over, have `otherwise`.
Value sample(Random& random, const Method& method, Value wanted, const Values& parameters,
             const Values& state, Value otherwise) {
  Builder& b = otherwise.builder();
  const size_t p = parameters.size(), s = state.size();
  Values init = parameters;
  init.insert(init.end(), state.begin(), state.end());
  init.push_back(random.state());
  init.push_back(otherwise);
  init.push_back(sh::not_(wanted));
  init.push_back(sh::scalar(b, ElementType::kS32, 0));

  const auto unfinished = [&](const Values& v) -> Values {
    Dims all;
    for (int64_t d = 0; d < v[p + s + 2].rank(); ++d) all.push_back(d);
    const Value open =
        all.empty() ? sh::not_(v[p + s + 2]) : sh::not_(sh::reduce_and(v[p + s + 2], all));
    return {open & (v[p + s + 3] < static_cast<double>(method.rounds))};
  };
  const auto round = [&](const Values& v) -> Values {
    const auto at = [&](size_t i) { return v.begin() + static_cast<std::ptrdiff_t>(i); };
    Random draws(v[p + s]);
    const Round made = method.propose(draws, Values(at(0), at(p)), Values(at(p), at(p + s)));
    const Value done = v[p + s + 2];
    Values next(at(0), at(p));
    next.insert(next.end(), made.state.begin(), made.state.end());
    next.push_back(draws.state());
    next.push_back(sh::select(made.accepted & sh::not_(done), made.sample, v[p + s + 1]));
    next.push_back(done | made.accepted);
    next.push_back(v[p + s + 3] + 1.0);
    return next;
  };
  return sh::while_(init, unfinished, round)[p + s + 1];
}

// --- Gamma --------------------------------------------------------------------------------------

// Marsaglia and Tsang, "A simple method for generating gamma variables" (2000), for shape >= 1.
Round propose_gamma(Random& random, const Values& parameters, const Values&) {
  const Value d = parameters[0] - 1.0 / 3.0;
  const Value x = random.normal(d.dtype(), d.dims());
  const Value u = random.uniform(d.dtype(), d.dims());
  const Value root = 1.0 + x / sh::sqrt(d * 9.0);
  const Value v = root * root * root;
  const Value bound = x * x * 0.5 + d - d * v + d * sh::log(v);
  return {{}, d * v, (root > 0.0) & (sh::log(u) < bound)};
}

Value gamma(Call& call, Value shape) {
  const ElementType type = shape.dtype();
  const Method method{propose_gamma, Words::normal(type) + Words::uniform(type), 48};
  Random random(call, method.words_for(shape) + shape.numel() * Words::exponential(type));
  // Shapes below 1 are raised by 1, and the sample scaled by a power of a uniform number.
  const Value small = shape < 1.0;
  const Value waiting = random.exponential(type, shape.dims());
  const Value factor = choose(small, sh::exponential(-waiting / shape), 1.0);
  const Value raised = choose(small, shape + 1.0, shape);
  const Value drawn = sample(random, method, shape > 0.0, {raised}, {}, raised);
  return choose(shape > 0.0, drawn * factor, 0.0);
}

Values standard_gamma(Call& call) {
  const Value self = call.tensor("self");
  require_real(call, self.dtype());
  if (self.numel() == 0) return {self};
  return {gamma(call, sh::convert(self, sampling_type(self.dtype())))};
}

Values sample_dirichlet(Call& call) {
  const Value self = call.tensor("self");
  require_real(call, self.dtype());
  if (self.numel() == 0) return {self};
  const Value parts = gamma(call, sh::convert(self, kReal));
  const int64_t last = self.rank() - 1;
  Dims others;
  for (int64_t d = 0; d < last; ++d) others.push_back(d);
  const Value sums = sh::broadcast_in_dim(sh::reduce_sum(parts, {last}), self.dims(), others);
  // Strictly between 0 and 1 in the result's type.
  const bool wide = self.dtype() == kReal;
  const Value least = sh::scalar(call.builder(), kReal, wide ? 0x1p-1022 : 0x1p-126);
  const Value most = sh::scalar(call.builder(), kReal, wide ? 1 - 0x1p-53 : 1 - 0x1p-24);
  return {sh::clamp(least, parts / sums, most)};
}

// --- Poisson ------------------------------------------------------------------------------------

Value log_factorial(Value k) { return sh::lgamma(k + 1.0); }

// A pair of uniform numbers, and the triangle-like variable that Hörmann's methods transform.
struct Proposal {
  Value centred, us, v;
};

Proposal transformed_uniforms(Random& random, const Dims& dims) {
  const Value u = random.uniform(kReal, dims);
  const Value v = random.uniform(kReal, dims);
  const Value centred = u - 0.5;
  return {centred, 0.5 - sh::abs(centred), v};
}

// Hörmann, "The transformed rejection method for generating Poisson random variables" (1993), PTRS,
// for rates of 10 and more.
Round propose_large_poisson(Random& random, const Values& parameters, const Values&) {
  const Value rate = parameters[0];
  const auto [centred, us, v] = transformed_uniforms(random, rate.dims());
  const Value b = sh::sqrt(rate) * 2.53 + 0.931;
  const Value a = b * 0.02483 - 0.059;
  const Value inverse_alpha = 1.1239 + 1.1328 / (b - 3.4);
  const Value v_r = 0.9277 - 3.6224 / (b - 2.0);
  const Value k = sh::floor((a * 2.0 / us + b) * centred + rate + 0.43);
  const Value quick = (us >= 0.07) & (v <= v_r);
  const Value refused = (k < 0.0) | ((us < 0.013) & (v > us));
  const Value left = sh::log(v) + sh::log(inverse_alpha) - sh::log(a / (us * us) + b);
  const Value kept = left <= k * sh::log(rate) - rate - log_factorial(k);
  return {{}, k, quick | (sh::not_(refused) & kept)};
}

// The number of uniform numbers whose product stays above exp(-rate). The state is the product so
// far and the number of its factors.
Round propose_small_poisson(Random& random, const Values& parameters, const Values& state) {
  const Value limit = parameters[0];
  const Value product = state[0] * random.uniform(kReal, limit.dims());
  return {{product, state[1] + 1.0}, state[1], product <= limit};
}

Values poisson(Call& call) {
  const Value self = call.tensor("self");
  require_real(call, self.dtype());
  if (self.numel() == 0) return {self};
  const Value rate = sh::convert(self, kReal);
  const Value zero = constant_like(rate, 0);
  const Value small = rate < 10.0;
  const Method few{propose_small_poisson, Words::uniform(kReal), 128};
  const Method many{propose_large_poisson, 2 * Words::uniform(kReal), 64};
  Random random(call, few.words_for(rate) + many.words_for(rate));
  const Value low =
      sample(random, few, small, {sh::exponential(-rate)}, {constant_like(rate, 1), zero}, rate);
  return {sample(random, many, rate >= 10.0, {choose(small, 10.0, rate)}, {}, low)};
}

// --- Binomial -----------------------------------------------------------------------------------

// Hörmann, "The generation of binomial random variates" (1993), BTRS, for n * p of 10 and more and
// p up to 1/2.
Round propose_large_binomial(Random& random, const Values& parameters, const Values&) {
  const Value n = parameters[0], p = parameters[1];
  const auto [centred, us, v] = transformed_uniforms(random, n.dims());
  const Value deviation = sh::sqrt(n * p * (1.0 - p));
  const Value b = deviation * 2.53 + 1.15;
  const Value a = b * 0.0248 - 0.0873 + p * 0.01;
  const Value alpha = (5.1 / b + 2.83) * deviation;
  const Value v_r = 0.92 - 4.2 / b;
  const Value odds = p / (1.0 - p);
  const Value mode = sh::floor((n + 1.0) * p);
  const Value k = sh::floor((a * 2.0 / us + b) * centred + n * p + 0.5);
  const Value outside = (k < 0.0) | (k > n);
  const Value quick = (us >= 0.07) & (v <= v_r);
  const Value left = sh::log(v * alpha / (a / (us * us) + b));
  const Value right = log_factorial(mode) + log_factorial(n - mode) - log_factorial(k) -
                      log_factorial(n - k) + (k - mode) * sh::log(odds);
  return {{}, k, sh::not_(outside) & (quick | (left <= right))};
}

// Steps from success to success until they pass n. The state is the position and the number of
// steps so far.
Round propose_small_binomial(Random& random, const Values& parameters, const Values& state) {
  const Value n = parameters[0], rate = parameters[1];
  const Value gap = sh::ceil(random.exponential(kReal, n.dims()) / rate);
  const Value position = state[0] + sh::maximum(gap, constant_like(gap, 1));
  return {{position, state[1] + 1.0}, state[1], position > n};
}

Values binomial(Call& call) {
  const Dims dims = sh::broadcast_shapes({call.tensor("count").dims(), call.tensor("prob").dims()});
  require_real(call, call.tensor("count").dtype());
  require_real(call, call.tensor("prob").dtype());
  const Value n = as(call.tensor("count"), kReal, dims);
  const Value p = as(call.tensor("prob"), kReal, dims);
  if (n.numel() == 0) return {n};
  // The rarer outcome is counted; where it cannot happen there is nothing to draw.
  const Value flipped = p > 0.5;
  const Value rare = choose(flipped, 1.0 - p, p);
  const Value possible = (rare > 0.0) & (n > 0.0);
  const Value large = n * rare >= 10.0;
  const Value zero = constant_like(n, 0);
  const Method few{propose_small_binomial, Words::exponential(kReal), 128};
  const Method many{propose_large_binomial, 2 * Words::uniform(kReal), 64};
  Random random(call, few.words_for(n) + many.words_for(n));
  const Value low = sample(random, few, possible & sh::not_(large), {n, -sh::log_plus_one(-rare)},
                           {zero, zero}, zero);
  const Value drawn = sample(random, many, possible & large,
                             {choose(large, n, 40.0), choose(large, rare, 0.5)}, {}, low);
  const Value hits = sh::maximum(choose(flipped, n - drawn, drawn), zero);
  return {choose(is_nan(p) | is_nan(n), n + p, hits)};
}

}  // namespace

void register_random_rejection(Registry& r) {
  r.add("aten::_standard_gamma", with_dtype_of("self", standard_gamma));
  r.add("aten::_sample_dirichlet", with_dtype_of("self", sample_dirichlet));
  r.add("aten::poisson", with_dtype_of("self", poisson));
  r.add("aten::binomial", with_dtype_of("count", binomial));
}

}  // namespace torch_tpu::lowering
