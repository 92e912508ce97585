#include "runtime/device_buffer.h"

#include "runtime/runtime.h"
#include "runtime/work_queue.h"

namespace torch_tpu::runtime {

namespace {

std::function<std::string(uint64_t)>& call_names() {
  static std::function<std::string(uint64_t)> names;
  return names;
}

}  // namespace

void set_call_names(std::function<std::string(uint64_t)> names) { call_names() = std::move(names); }

void DeviceBuffer::await() const {
  const pjrt::Buffer& array = pjrt();
  try {
    array.ready().await();
  } catch (const pjrt::Error& e) {
    rethrow_named(e);
  }
}

void DeviceBuffer::rethrow_named(const pjrt::Error& error) const {
  if (buffer_.is_deleted()) throw error;
  const std::string call = maker_ && call_names() ? call_names()(maker_) : std::string();
  const std::string program = source_ ? source_->describe() : std::string();
  if (call.empty() && program.empty()) throw error;
  std::string message = call.empty() ? program : call;
  message += ", or what it was computed from, failed";
  if (!call.empty() && source_ && source_->operators() > 1) message += " in " + program;
  message += ": ";
  message += error.what();
  // Waiting after each operator also finds the first that fails in a program of many.
  message += "\nTORCH_TPU_LAUNCH_BLOCKING=1 stops at the operator that fails.";
  throw pjrt::Error(error.code(), message);
}

void DeviceBuffer::given_away() const {
  if (counted_.exchange(false, std::memory_order_relaxed)) discount();
}

void DeviceBuffer::discount() const {
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
  if (counted_.load(std::memory_order_relaxed)) discount();
  if (Runtime::in_bad_fork()) [[unlikely]] {
    // The plugin's threads, and whoever held its locks, are in the other process.
    static_cast<void>(buffer_.release());
    return;
  }
  forget_value(*this);
}

}  // namespace torch_tpu::runtime
