// What PyTorch asks of an accelerator beside running operators.
#include "eager/hooks.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>

#include <memory>

#include "eager/device_context.h"
#include "eager/generator.h"
#include "eager/pinned_memory.h"
#include "eager/storage_resize.h"
#include "runtime/runtime.h"

namespace torch_tpu::eager {

namespace {

struct TpuHooks final : public at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return runtime::Runtime::device_count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override {
    return runtime::Runtime::initialized();
  }
  void init() const override { runtime::Runtime::get(); }

  c10::DeviceIndex deviceCount() const override {
    return static_cast<c10::DeviceIndex>(runtime::Runtime::device_count());
  }
  void setCurrentDevice(c10::DeviceIndex device) const override { set_current_device(device); }
  c10::DeviceIndex getCurrentDevice() const override {
    return static_cast<c10::DeviceIndex>(current_device());
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    const int previous = current_device();
    if (device >= 0 && device != previous) set_current_device(device);
    return static_cast<c10::DeviceIndex>(previous);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return exchangeDevice(device);
  }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return default_generator(device);
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return make_generator(device < 0 ? current_device() : device);
  }

  at::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  at::Device getDeviceFromPtr(void*) const override {
    return at::Device(kTpu, static_cast<c10::DeviceIndex>(current_device()));
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t nbytes) const override {
    resize_storage(storage, nbytes);
  }
};

}  // namespace

void register_hooks() {
  // Registered for the life of the process.
  at::RegisterPrivateUse1HooksInterface(std::make_unique<TpuHooks>().release());
}

}  // namespace torch_tpu::eager
