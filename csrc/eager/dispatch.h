// The one kernel behind every operator of the device.
#pragma once

#include <ATen/core/boxing/OperatorKernel.h>
#include <ATen/core/stack.h>

#include <functional>

#include "eager/operator_info.h"

namespace torch_tpu::eager {

// The registered kernel: knows its operator, so a call looks nothing up by name.
class OperatorFunctor : public c10::OperatorKernel {
 public:
  explicit OperatorFunctor(const OperatorInfo& info) : info_(info) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack);

 private:
  const OperatorInfo& info_;
};

// The backend fallback: operators without a kernel of their own.
void dispatch_fallback(const c10::OperatorHandle& op, c10::DispatchKeySet,
                       torch::jit::Stack* stack);

// Runs the call: from the signature cache, else by rule, decomposition or the CPU.
void dispatch(const OperatorInfo& info, const c10::OperatorHandle& op, torch::jit::Stack& stack);

// Runs PyTorch's decomposition of an operator on the stack's arguments; false if there is none.
// Python provides it.
using Decomposition = std::function<bool(const c10::OperatorHandle&, torch::jit::Stack&)>;
void set_decomposition(Decomposition decomposition);

enum class FallbackPolicy { kWarn, kSilent, kError };
FallbackPolicy fallback_policy();
void set_fallback_policy(FallbackPolicy policy);

// Counts a call that goes to the CPU and warns or refuses, as the policy says.
void announce_fallback(const OperatorInfo& info, const std::string& reason);

// The operator on the CPU, with copies there and back. `reason` goes into the warning.
void run_on_cpu(const OperatorInfo& info, const c10::OperatorHandle& op, torch::jit::Stack& stack,
                const std::string& reason);

// Calls `body`, turning the lower layers' exceptions into PyTorch's.
template <typename Body>
auto with_torch_errors(const char* what, Body&& body) -> decltype(body());
// Rethrows the exception in flight as one of PyTorch's.
[[noreturn]] void rethrow_as_torch_error(const char* what);

template <typename Body>
auto with_torch_errors(const char* what, Body&& body) -> decltype(body()) {
  try {
    return body();
  } catch (...) {
    rethrow_as_torch_error(what);
  }
}

}  // namespace torch_tpu::eager
