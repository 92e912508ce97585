#include "eager/debug_mode.h"

#include <optional>

#include "eager/device_storage.h"
#include "eager/mode.h"
#include "eager/nan_check.h"
#include "eager/value_checks.h"

namespace torch_tpu::eager {

namespace {

void wait(const at::Tensor& tensor) {
  if (!is_tpu(tensor) || !tensor.has_storage()) return;
  const runtime::DeviceBufferPtr buffer = device_storage(tensor).buffer();
  if (buffer && !buffer->is_hollow()) buffer->pjrt().ready().await();
}

void wait(const c10::IValue& value) {
  if (value.isTensor()) {
    wait(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& t : value.toTensorVector()) wait(t);
  }
}

// Operators called by another's decomposition, or by a check, do not name NaN: what is between
// the user's operators is not the user's.
class Nested {
 public:
  Nested() { ++depth(); }
  ~Nested() { --depth(); }
  Nested(const Nested&) = delete;
  Nested& operator=(const Nested&) = delete;
  static bool any() { return depth() > 0; }

 private:
  static int& depth() {
    thread_local int n = 0;
    return n;
  }
};

}  // namespace

void debug_call(const OperatorInfo& info, const c10::OperatorHandle& op, torch::jit::Stack& stack,
                const std::function<void()>& run) {
  const size_t first = stack.size() - info.arguments.size();
  const std::vector<c10::IValue> arguments(stack.begin() + static_cast<std::ptrdiff_t>(first),
                                           stack.end());
  const NanCheck wanted = current_settings().nan;
  const bool outermost = !Nested::any();
  const Nested nested;
  check_values(info, op, arguments);
  std::optional<NanWatch> watch;
  if (outermost && wanted.action != NanCheck::Action::kNone) watch.emplace(info, arguments, wanted);
  run();
  const std::vector<c10::IValue> returns(stack.begin() + static_cast<std::ptrdiff_t>(first),
                                         stack.end());
  for (const c10::IValue& value : returns) wait(value);
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (info.arguments[i].written) wait(arguments[i]);
  }
  if (watch) watch->look_at(returns);
}

void wait_if_debugging(const at::Tensor& tensor) {
  if (current_mode() == EagerMode::kDeferNeverAndLaunchBlocking) wait(tensor);
}

}  // namespace torch_tpu::eager
