#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <set>

#include "eager/copy.h"
#include "eager/device_context.h"
#include "eager/device_storage.h"
#include "eager/dispatch.h"
#include "eager/program_trace.h"
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

template <typename Visit>
void for_each_tensor(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    if (is_tpu(value.toTensor())) visit(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& entry : value.toListRef()) for_each_tensor(entry, visit);
  }
}

// Whether the call writes to a storage that several of its tensors show.
bool writes_shared_storage(const OperatorInfo& info, std::span<const c10::IValue> arguments) {
  std::vector<const DeviceStorage*> all, written;
  for (size_t i = 0; i < arguments.size(); ++i) {
    for_each_tensor(arguments[i], [&](const at::Tensor& t) {
      all.push_back(&device_storage(t));
      if (info.arguments[i].written) written.push_back(all.back());
    });
  }
  std::ranges::sort(all);
  return std::ranges::any_of(written, [&](const DeviceStorage* storage) {
    return std::ranges::equal_range(all, storage).size() > 1;
  });
}

// The arguments of a call on the host, as views of copies of whole storages. (PyTorch's fallback
// copies each tensor by itself: what is written to one would not be seen through another.)
class HostCall {
 public:
  c10::IValue argument(const c10::IValue& value, bool written) {
    if (value.isTensor()) return tensor(value.toTensor(), written);
    if (value.isTensorList()) {
      std::vector<at::Tensor> out;
      for (const at::Tensor& t : value.toTensorVector()) out.push_back(tensor(t, written));
      return out;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> out;
      for (const std::optional<at::Tensor>& t : value.toOptionalTensorVector()) {
        out.push_back(t ? std::optional<at::Tensor>(tensor(*t, written)) : std::nullopt);
      }
      return out;
    }
    if (value.isDevice() && value.toDevice().type() == kTpu) return c10::Device(c10::kCPU);
    return value;
  }

  // Brings what was written back.
  void finish() {
    for (Storage& s : storages_) {
      if (s.written) s.device.copy_(s.host);
    }
    for (auto& [device, host] : written_) {
      if (device.sizes() == host.sizes()) continue;
      at::native::resize_output(device, host.sizes());
      device.copy_(host);
    }
  }

 private:
  struct Storage {
    at::Tensor device, host;  // all of it, in one dimension
    bool written = false;
  };

  at::Tensor tensor(const at::Tensor& t, bool written) {
    if (!is_tpu(t)) return t;
    auto it =
        std::ranges::find_if(storages_, [&](const Storage& s) { return s.device.is_alias_of(t); });
    if (it == storages_.end()) {
      const auto n = static_cast<int64_t>(t.storage().nbytes() / t.itemsize());
      at::Tensor whole = over_storage(t.storage(), t);
      whole.unsafeGetTensorImpl()->_set_conj(false);
      whole.unsafeGetTensorImpl()->_set_neg(false);
      whole.unsafeGetTensorImpl()->set_sizes_and_strides(std::array{n}, std::array{int64_t{1}}, 0);
      it = storages_.insert(storages_.end(), {whole, to_cpu(whole), false});
    }
    it->written |= written;
    auto impl = c10::make_intrusive<c10::TensorImpl>(
        c10::Storage(it->host.storage()), c10::DispatchKeySet(c10::DispatchKey::CPU), t.dtype());
    impl->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
    impl->_set_conj(t.is_conj());
    impl->_set_neg(t.is_neg());
    at::Tensor host(std::move(impl));
    if (written) written_.emplace_back(t, host);
    return host;
  }

  std::vector<Storage> storages_;
  std::vector<std::pair<at::Tensor, at::Tensor>> written_;
};

c10::IValue to_device(const c10::IValue& value, c10::Device device) {
  if (value.isTensor() && value.toTensor().defined()) return value.toTensor().to(device);
  if (!value.isTensorList()) return value;
  std::vector<at::Tensor> out;
  for (const at::Tensor& t : value.toTensorVector()) out.push_back(t.to(device));
  return out;
}

void run_on_host(const OperatorInfo& info, const c10::OperatorHandle& op,
                 torch::jit::Stack& stack) {
  const torch::jit::Stack arguments = torch::jit::pop(stack, info.arguments.size());
  std::optional<c10::Device> device;
  HostCall call;
  torch::jit::Stack host;
  for (size_t i = 0; i < arguments.size(); ++i) {
    for_each_tensor(arguments[i], [&](const at::Tensor& t) { device = t.device(); });
    host.push_back(call.argument(arguments[i], info.arguments[i].written));
  }
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &host);
  call.finish();
  for (size_t i = 0; i < info.returns.size(); ++i) {
    const int alias = info.returns[i].alias;
    stack.push_back(alias >= 0 ? arguments[static_cast<size_t>(alias)]
                               : to_device(host.at(i), *device));
  }
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
  const size_t count = info.arguments.size();
  if (writes_shared_storage(info, {stack.data() + (stack.size() - count), count})) {
    run_on_host(info, op, stack);
  } else {
    at::native::cpu_fallback(op, &stack);
  }
}

}  // namespace torch_tpu::eager
