// A value on a device: an immutable array, perhaps still being computed.
#pragma once

#include <atomic>
#include <memory>

#include "pjrt/buffer.h"
#include "runtime/layout.h"
#include "runtime/memory.h"

namespace torch_tpu::runtime {

// Immutable and shared: two storages with the same contents (after clone()) share one. Its memory
// counts from construction until it is given away or destroyed.
class DeviceBuffer {
 public:
  DeviceBuffer(pjrt::Buffer buffer, const Layout* layout, int device)
      : buffer_(std::move(buffer)), layout_(layout), device_(device) {
    memory_counters(device_).add(static_cast<int64_t>(layout_->nbytes));
    layout_->live.fetch_add(1, std::memory_order_relaxed);
  }
  ~DeviceBuffer();
  // The array was donated: its memory is a program's result now, and is counted there.
  void given_away() const;
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  const pjrt::Buffer& pjrt() const { return buffer_; }
  PJRT_Buffer* handle() const { return buffer_.handle(); }
  const Layout* layout() const { return layout_; }
  int device() const { return device_; }

 private:
  pjrt::Buffer buffer_;
  const Layout* layout_;
  int device_;
  mutable std::atomic<bool> counted_{true};
};

using DeviceBufferPtr = std::shared_ptr<const DeviceBuffer>;

}  // namespace torch_tpu::runtime
