#include "eager/cpu_error.h"

#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <unordered_map>

#include "eager/copy.h"
#include "eager/device_context.h"
#include "eager/device_storage.h"

namespace torch_tpu::eager {

namespace {

// All tensors together; beyond this trying is not worth the memory.
constexpr size_t kMaxBytes = size_t{1} << 28;

// The call's arguments with CPU tensors. What shares a storage still does, as overlaps are errors.
class CpuArguments {
 public:
  explicit CpuArguments(StandIn stand_in) : stand_in_(stand_in) {}
  c10::IValue operator()(const c10::IValue& value) {
    if (value.isTensor()) return tensor(value.toTensor());
    if (value.isTensorList()) {
      std::vector<at::Tensor> out;
      for (const at::Tensor& t : value.toTensorVector()) out.push_back(tensor(t));
      return out;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> out;
      for (const auto& t : value.toOptionalTensorVector()) {
        out.push_back(t ? std::optional<at::Tensor>(tensor(*t)) : std::nullopt);
      }
      return out;
    }
    if (value.isDevice() && value.toDevice().type() == kTpu) return c10::Device(c10::kCPU);
    if (value.isGenerator()) return {};
    return value;
  }
  size_t nbytes() const { return nbytes_; }

 private:
  at::Tensor tensor(const at::Tensor& t) {
    if (!is_tpu(t)) return t;
    // Row-major: kernels for expanded indices check less.
    if (stand_in_ == StandIn::kSameValues) return to_cpu(t).contiguous();
    const size_t size = t.storage().nbytes();
    at::Tensor& bytes = storages_[&device_storage(t)];
    if (!bytes.defined()) {
      nbytes_ += size;
      if (nbytes_ > kMaxBytes) return t;
      bytes = at::zeros({static_cast<int64_t>(size)}, c10::kByte);
    }
    auto impl = c10::make_intrusive<c10::TensorImpl>(
        c10::Storage(bytes.storage()), c10::DispatchKeySet(c10::DispatchKey::CPU), t.dtype());
    impl->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
    return at::Tensor(std::move(impl));
  }

  const StandIn stand_in_;
  std::unordered_map<const DeviceStorage*, at::Tensor> storages_;
  size_t nbytes_ = 0;
};

// The trial's warnings are not the call's.
class NoWarnings : public c10::WarningHandler {
 public:
  void process(const c10::Warning&) override {}
};

}  // namespace

bool throw_as_cpu_does(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments,
                       StandIn stand_in) {
  CpuArguments on_cpu(stand_in);
  torch::jit::Stack stack;
  for (const c10::IValue& a : arguments) stack.push_back(on_cpu(a));
  if (on_cpu.nbytes() > kMaxBytes) return false;
  NoWarnings handler;
  const c10::WarningUtils::WarningHandlerGuard quiet(&handler);
  try {
    op.callBoxed(stack);
  } catch (const c10::NotImplementedError&) {
    // From a kernel: not for this dtype. Without one it says nothing about the call.
    if (op.hasKernelForDispatchKey(c10::DispatchKey::CPU)) throw;
  }
  return true;
}

}  // namespace torch_tpu::eager
