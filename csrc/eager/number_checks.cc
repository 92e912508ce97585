#include "eager/number_checks.h"

#include <ATen/Dispatch_v2.h>
#include <ATen/Functions.h>

#include <cmath>
#include <limits>
#include <string_view>

namespace torch_tpu::eager {

// What an operator expects of one or two of its numbers.
struct NumberCheck {
  std::string_view op;  // without an in-place variant's underscore
  std::string_view first, second;
  bool (*holds)(double first, double second, c10::ScalarType dtype);
  // Calls it on the CPU with a tensor of one element: the CPU says in its own words what is wrong.
  void (*ask)(const at::Tensor& x, double first, double second);
};

namespace {

double largest(c10::ScalarType dtype) {
  const c10::ScalarType real = c10::toRealValueType(dtype);
  double limit = 0;
  if (at::isFloatingType(real) && !c10::isFloat8Type(real)) {
    AT_DISPATCH_V2(real, "uniform_", AT_WRAP([&] {
                     limit = static_cast<double>(std::numeric_limits<scalar_t>::max());
                   }),
                   AT_EXPAND(AT_FLOATING_TYPES), at::kHalf, at::kBFloat16);
  }
  return limit;
}

bool is_interval(double from, double to, c10::ScalarType dtype) {
  if (!(from <= to)) return false;
  // Half of float16's range: no dtype is narrower.
  constexpr double kAnyDtype = 32752;
  if (from >= -kAnyDtype && to <= kAnyDtype) return true;
  const double limit = largest(dtype);
  return from >= -limit && to <= limit && to - from <= limit;
}
bool is_finite_range(double low, double high, c10::ScalarType) {
  return std::isfinite(low) && std::isfinite(high) && low <= high;
}
bool is_in_reach(double x, double, c10::ScalarType dtype) { return x >= 0 && x <= largest(dtype); }
bool is_probability(double p, double, c10::ScalarType) { return p >= 0 && p <= 1; }
bool is_proper_probability(double p, double, c10::ScalarType) { return p > 0 && p < 1; }
bool is_positive(double x, double, c10::ScalarType) { return x > 0; }
bool is_not_negative(double x, double, c10::ScalarType) { return x >= 0; }
bool is_not_zero(double x, double, c10::ScalarType) { return x != 0; }
bool second_is_positive(double, double x, c10::ScalarType) { return x > 0; }
bool second_is_not_negative(double, double x, c10::ScalarType) { return x >= 0; }

using T = const at::Tensor&;

constexpr NumberCheck kChecks[] = {
    // Distributions
    {"aten::uniform", "from", "to", is_interval,
     [](T t, double from, double to) { t.uniform_(from, to); }},
    {"aten::normal", "mean", "std", second_is_not_negative,
     [](T t, double mean, double std) { t.normal_(mean, std); }},
    {"aten::normal_functional", "mean", "std", second_is_not_negative,
     [](T t, double mean, double std) { t.normal_(mean, std); }},
    {"aten::log_normal", "mean", "std", second_is_positive,
     [](T t, double mean, double std) { t.log_normal_(mean, std); }},
    {"aten::cauchy", "median", "sigma", second_is_positive,
     [](T t, double median, double sigma) { t.cauchy_(median, sigma); }},
    {"aten::exponential", "lambd", "", is_positive,
     [](T t, double lambd, double) { t.exponential_(lambd); }},
    {"aten::geometric", "p", "", is_proper_probability,
     [](T t, double p, double) { t.geometric_(p); }},
    {"aten::bernoulli", "p", "", is_probability, [](T t, double p, double) { t.bernoulli_(p); }},
    {"aten::native_dropout", "p", "", is_probability,
     [](T t, double p, double) { at::native_dropout(t, p, true); }},
    // Others
    {"aten::softshrink", "lambd", "", is_in_reach,
     [](T t, double lambd, double) { at::softshrink(t, lambd); }},
    {"aten::celu", "alpha", "", is_not_zero, [](T t, double alpha, double) { at::celu(t, alpha); }},
    {"aten::huber_loss", "delta", "", is_positive,
     [](T t, double delta, double) { at::huber_loss(t, t, at::Reduction::Mean, delta); }},
    {"aten::smooth_l1_loss", "beta", "", is_not_negative,
     [](T t, double beta, double) { at::smooth_l1_loss(t, t, at::Reduction::Mean, beta); }},
    {"aten::renorm", "maxnorm", "", is_not_negative,
     [](T t, double maxnorm, double) { at::renorm(t.view({1, 1}), 2, 0, maxnorm); }},
    {"aten::histc", "min", "max", is_finite_range,
     [](T t, double low, double high) { at::histc(t, 1, low, high); }},
};

const NumberCheck* check_of(std::string_view op) {
  if (op.ends_with('_')) op.remove_suffix(1);
  for (const NumberCheck& check : kChecks) {
    if (check.op == op) return &check;
  }
  return nullptr;
}

std::optional<size_t> named(const OperatorInfo& info, std::string_view name, ArgumentKind kind) {
  for (size_t i = 0; i < info.arguments.size(); ++i) {
    if (info.arguments[i].name == name && info.arguments[i].kind == kind) return i;
  }
  return std::nullopt;
}

}  // namespace

NumberCheckFunctor::NumberCheckFunctor(const OperatorInfo& info, const NumberCheck& check)
    : info_(info),
      check_(check),
      first_(named(info, check.first, ArgumentKind::kNumber)),
      second_(named(info, check.second, ArgumentKind::kNumber)),
      train_(named(info, "train", ArgumentKind::kBool)) {}

void NumberCheckFunctor::operator()(const c10::OperatorHandle& op, c10::DispatchKeySet,
                                    torch::jit::Stack* stack) {
  const c10::IValue* const arguments = stack->data() + (stack->size() - info_.arguments.size());
  const double first = first_ ? arguments[*first_].toScalar().toDouble() : 0;
  const double second = second_ ? arguments[*second_].toScalar().toDouble() : 0;
  const c10::ScalarType dtype =
      arguments[0].isTensor() ? arguments[0].toTensor().scalar_type() : at::kFloat;
  const bool draws = !train_ || arguments[*train_].isNone() || arguments[*train_].toBool();
  if (draws && !check_.holds(first, second, dtype)) {
    check_.ask(at::zeros({1}, dtype), first, second);
  }
  dispatch(info_, op, *stack);
}

void register_number_checks(torch::Library& aten) {
  const lowering::Registry& rules = lowering::Registry::instance();
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const NumberCheck* const check = check_of(name.name);
    if (!check || !rules.find(name.name, name.overload_name)) continue;
    const std::optional<c10::OperatorHandle> op = dispatcher.findSchema(name);
    if (!op || op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) ||
        op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) {
      continue;
    }
    const OperatorInfo& info = operator_info(*op);
    // A tensor in a number's place is looked at in the debug mode.
    const std::string_view last = check->second.empty() ? check->first : check->second;
    if (!named(info, last, ArgumentKind::kNumber)) continue;
    const std::string qualified =
        name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    aten.impl(qualified.c_str(), torch::CppFunction::makeFromBoxedFunctor(
                                     std::make_unique<NumberCheckFunctor>(info, *check)));
  }
}

}  // namespace torch_tpu::eager
