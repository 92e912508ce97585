// What a tpu tensor's storage really is: a slot for one device value in the natural shape it was
// created with. PyTorch sees an opaque, unique address that must not be dereferenced.
#pragma once

#include <ATen/core/Tensor.h>

#include <mutex>
#include <thread>

#include "eager/address_space.h"
#include "lowering/view.h"
#include "runtime/device_buffer.h"
#include "runtime/spin_lock.h"

namespace torch_tpu::eager {

// What a storage holds at a moment.
// - unfilled: neither buffer nor traced. Its bytes are undefined (torch.empty).
// - filled: a buffer, whose row-major order is the order of the storage's elements. The buffer of a
//   dry run is hollow.
// - traced: a value of a program under construction (see trace.h).
// While a filled storage is lent, its buffer's memory belongs to a program about to run.
struct Contents {
  runtime::DeviceBufferPtr buffer;
  stablehlo::Value traced;
  const runtime::Layout* layout = nullptr;

  bool filled() const { return layout != nullptr; }
};

class DeviceStorage {
 public:
  explicit DeviceStorage(int device) : device_(device), address_(take_address(this)) {}
  ~DeviceStorage() { give_address_back(address_); }
  DeviceStorage(const DeviceStorage&) = delete;
  DeviceStorage& operator=(const DeviceStorage&) = delete;
  static void* operator new(size_t size);
  static void operator delete(void* p) noexcept;

  // These two wait while the storage is lent.
  Contents contents() const {
    const auto lock = lock_settled();
    return contents_;
  }
  runtime::DeviceBufferPtr buffer() const {
    const auto lock = lock_settled();
    return contents_.buffer;
  }
  // Lends the buffer for donation if only this storage and the caller's `held` have it; nobody can
  // start to read it then. Ends with set(), or with take_back() when the program did not run.
  bool lend(const runtime::DeviceBufferPtr& held) {
    const std::lock_guard lock(mutex_);
    if (lent_ || contents_.buffer != held || held.use_count() > 2) return false;
    lent_ = true;
    return true;
  }
  void take_back() {
    const std::lock_guard lock(mutex_);
    lent_ = false;
  }
  // Rebinds the storage: every tensor over it sees the new value.
  void set(runtime::DeviceBufferPtr buffer) {
    const std::lock_guard lock(mutex_);
    contents_.layout = buffer->layout();
    contents_.buffer = std::move(buffer);
    contents_.traced = {};
    lent_ = false;
  }
  void set_traced(stablehlo::Value value) {
    const std::lock_guard lock(mutex_);
    contents_.layout = runtime::intern_layout(value.type());
    contents_.traced = value;
    contents_.buffer.reset();
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    contents_ = {};
  }
  // What a dry run has put away comes back.
  void restore(Contents contents) {
    const std::lock_guard lock(mutex_);
    contents_ = std::move(contents);
  }
  int device() const { return device_; }
  // What PyTorch takes for the address of its bytes.
  uintptr_t address() const { return address_; }

  // The last dry run that made this storage, or wrote to it and has put away what was there before
  // (see dry_run.h). For the thread of that dry run.
  struct DryRunMark {
    uint32_t id = 0;
    bool made_in_it = false;
  };
  DryRunMark dry_run;

 private:
  std::unique_lock<runtime::SpinLock> lock_settled() const {
    std::unique_lock lock(mutex_);
    while (lent_) {
      lock.unlock();
      std::this_thread::yield();
      lock.lock();
    }
    return lock;
  }

  mutable runtime::SpinLock mutex_;
  Contents contents_;
  bool lent_ = false;
  const int device_;
  const uintptr_t address_;
};

// A DataPtr over a new, unfilled DeviceStorage.
c10::DataPtr make_data_ptr(int device);
// The DeviceStorage under a storage or tensor; throws if it is not a tpu one.
DeviceStorage& device_storage(const c10::StorageImpl& storage);
DeviceStorage& device_storage(const at::Tensor& tensor);

// Whether the tensor is an ordinary tpu tensor with a storage.
inline bool is_tpu(const at::Tensor& t) {
  return t.defined() && t.device().type() == c10::DeviceType::PrivateUse1;
}

// A new tensor over a new storage. `buffer` may be null (unfilled).
at::Tensor make_tensor(runtime::DeviceBufferPtr buffer, c10::ScalarType dtype,
                       c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t offset,
                       size_t nbytes, int device);

// The tensor's recipe over its storage.
lowering::ViewSpec view_of(const at::Tensor& tensor);
// The shape a storage gets when the tensor is written as a whole: its sizes from the largest
// stride to the smallest. nullopt unless the tensor covers its whole storage densely.
std::optional<stablehlo::Dims> whole_order(const at::Tensor& tensor);

// Contiguous row-major strides.
c10::SmallVector<int64_t, 6> row_major_strides(c10::IntArrayRef sizes);

}  // namespace torch_tpu::eager
