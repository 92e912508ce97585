#include "runtime/device_buffer.h"

#include "runtime/runtime.h"
#include "runtime/work_queue.h"

namespace torch_tpu::runtime {

void DeviceBuffer::given_away() const {
  if (!counted_.exchange(false, std::memory_order_relaxed)) return;
  layout_->live.fetch_sub(1, std::memory_order_relaxed);
  memory_counters(device_).remove(static_cast<int64_t>(layout_->nbytes));
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
