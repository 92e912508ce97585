#include <ATen/native/CPUFallback.h>

#include <atomic>
#include <mutex>
#include <set>

#include "eager/dispatch.h"
#include "eager/trace.h"
#include "environment/environment.h"
#include "runtime/statistics.h"

namespace torch_tpu::eager {

namespace {

FallbackPolicy policy_from_environment() {
  constexpr const char* kVariable = "TORCH_TPU_FALLBACK";
  const std::string value = environment::text(kVariable);
  if (value.empty() || value == "warn") return FallbackPolicy::kWarn;
  if (value == "silent") return FallbackPolicy::kSilent;
  if (value == "error") return FallbackPolicy::kError;
  environment::refuse(kVariable, "warn, silent or error", value);
}

std::atomic<FallbackPolicy>& policy() {
  static std::atomic<FallbackPolicy> p{policy_from_environment()};
  return p;
}

bool first_time(const std::string& op) {
  static std::mutex mutex;
  static std::set<std::string> seen;
  const std::lock_guard lock(mutex);
  return seen.insert(op).second;
}

}  // namespace

FallbackPolicy fallback_policy() { return policy().load(std::memory_order_relaxed); }
void set_fallback_policy(FallbackPolicy p) { policy().store(p); }

void announce_fallback(const OperatorInfo& info, const std::string& reason) {
  require_real_values(info.name.c_str());
  runtime::statistics().count_fallback(info.qualified());
  switch (fallback_policy()) {
    case FallbackPolicy::kError:
      TORCH_CHECK_NOT_IMPLEMENTED(
          false, info.qualified(), " would run on the CPU (", reason,
          "), and TORCH_TPU_FALLBACK=error forbids it. Set it to warn or silent to allow it.");
      break;
    case FallbackPolicy::kWarn:
      if (first_time(info.qualified())) {
        TORCH_WARN(info.qualified(), " runs on the CPU, which is slow: ", reason,
                   ". (Said once per operator; TORCH_TPU_FALLBACK=silent hides it, "
                   "TORCH_TPU_FALLBACK=error makes it an error.)");
      }
      break;
    case FallbackPolicy::kSilent:
      break;
  }
}

void run_on_cpu(const OperatorInfo& info, const c10::OperatorHandle& op, torch::jit::Stack& stack,
                const std::string& reason) {
  announce_fallback(info, reason);
  at::native::cpu_fallback(op, &stack);
}

}  // namespace torch_tpu::eager
