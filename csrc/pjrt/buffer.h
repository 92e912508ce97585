#pragma once

#include <pjrt_c_api.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "pjrt/device.h"
#include "pjrt/event.h"

namespace torch_tpu::pjrt {

// An array on a device, possibly still being computed. Move-only; two pointers wide because every
// op moves some. It does not keep its client alive: whoever holds buffers holds the client.
// Destroying a buffer that a running program reads is fine, the plugin defers the release.
class Buffer {
 public:
  Buffer() noexcept = default;
  // Takes ownership, e.g. of what Executable::execute wrote.
  static Buffer adopt(const PJRT_Api* api, PJRT_Buffer* handle) noexcept {
    return Buffer(api, handle);
  }
  Buffer(Buffer&& other) noexcept
      : api_(other.api_), handle_(std::exchange(other.handle_, nullptr)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    if (this != &other) {
      reset();
      api_ = other.api_;
      handle_ = std::exchange(other.handle_, nullptr);
    }
    return *this;
  }
  ~Buffer() { reset(); }

  explicit operator bool() const noexcept { return handle_ != nullptr; }
  PJRT_Buffer* handle() const noexcept { return handle_; }
  // Drops the array now; the Buffer is empty afterwards.
  void reset() noexcept {
    if (handle_ != nullptr) destroy();
  }
  // Gives up ownership.
  PJRT_Buffer* release() noexcept { return std::exchange(handle_, nullptr); }

  size_t on_device_size() const;
  PJRT_Buffer_Type element_type() const;
  std::vector<int64_t> dimensions() const;
  // Whether the array was donated to a program (or deleted): it must not be read any more.
  bool is_deleted() const;

  // Ready when the array has its value; failed when the program that computes it failed.
  Event ready() const;
  // Starts copying into `dst`, which must stay valid until the event is ready: dense, row-major,
  // whatever the layout on the device. `size` is the room at `dst` in bytes.
  Event to_host(void* dst, size_t size) const;
  // Fills `dst` like to_host, and waits for it. Where the device's memory is the host's this is a
  // plain copy: 0.1 us for a scalar, against 20 us for a round trip through the plugin's threads.
  // Nobody may donate this buffer to a program meanwhile.
  void read(void* dst, size_t size) const;
  // The address of the data (on CPU plugins: readable host memory). Await ready() first.
  void* unsafe_pointer() const;
  // A copy on another device of the same client. Throws Error if it is already there.
  Buffer copy_to_device(const Device& device) const;

 private:
  Buffer(const PJRT_Api* api, PJRT_Buffer* handle) noexcept : api_(api), handle_(handle) {}
  void destroy() noexcept;

  const PJRT_Api* api_ = nullptr;
  PJRT_Buffer* handle_ = nullptr;
};

static_assert(sizeof(Buffer) == 2 * sizeof(void*));

}  // namespace torch_tpu::pjrt
