#include "runtime/device_buffer.h"

#include "pjrt/error.h"
#include "runtime/runtime.h"
#include "runtime/work_queue.h"

namespace torch_tpu::runtime {

void DeviceBuffer::given_away() const {
  if (!counted_.exchange(false, std::memory_order_relaxed)) return;
  layout_->live.fetch_sub(1, std::memory_order_relaxed);
  memory_counters(device_).remove(static_cast<int64_t>(layout_->nbytes));
}

PJRT_Buffer* DeviceBuffer::wait() const {
  source_->demand();
  return handle_.load(std::memory_order_acquire);
}

void DeviceBuffer::count() const {
  if (counted_.exchange(true, std::memory_order_relaxed)) return;
  memory_counters(device_).add(static_cast<int64_t>(layout_->nbytes));
  layout_->live.fetch_add(1, std::memory_order_relaxed);
}

void DeviceBuffer::fulfil(pjrt::Buffer array) const {
  buffer_ = std::move(array);
  count();
  handle_.store(buffer_.handle(), std::memory_order_release);
}

void DeviceBuffer::refuse_hollow() {
  throw pjrt::Error(PJRT_Error_Code_FAILED_PRECONDITION,
                    "expected a tensor with data, got one that was made by torch.tpu.warmup and "
                    "holds no data: warmup computes nothing. Make the tensor again, outside of the "
                    "call that was warmed up");
}

DeviceBuffer::~DeviceBuffer() {
  given_away();
  if (Runtime::in_bad_fork()) [[unlikely]] {
    // The plugin's threads, and whoever held its locks, are in the other process.
    static_cast<void>(buffer_.release());
    return;
  }
  forget_value(*this);
}

}  // namespace torch_tpu::runtime
