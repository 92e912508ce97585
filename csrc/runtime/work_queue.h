// What has been dispatched on each stream and may still be running. PJRT orders work by data, so
// a stream needs no queue of its own: it only remembers what to wait for.
#pragma once

#include <functional>
#include <vector>

#include "runtime/device_buffer.h"

namespace torch_tpu::runtime {

using StreamId = int64_t;

// Something that ends: the computation of a device value, or a copy to the host.
class Work {
 public:
  explicit Work(DeviceBufferPtr value) : value_(std::move(value)) {}
  explicit Work(std::shared_ptr<const pjrt::Event> done) : done_(std::move(done)) {}

  // Throws pjrt::Error if it failed.
  void await() const;
  bool is_ready() const;
  // Runs `callback` once it has ended, perhaps on a thread of the plugin.
  void on_ready(std::function<void()> callback) const;

 private:
  friend void record_work(int device, StreamId stream, const Work& work);

  DeviceBufferPtr value_;  // one of the two is set
  std::shared_ptr<const pjrt::Event> done_;
};

// Remembers a result computed on a stream. Cheap: results nobody holds any more are forgotten,
// except a stream's last one, which is still waited for.
void record_work(int device, StreamId stream, const DeviceBufferPtr& result);
// Remembers a copy to the host.
void record_work(int device, StreamId stream, std::shared_ptr<const pjrt::Event> done);
void record_work(int device, StreamId stream, const Work& work);
// A buffer's destructor says that it goes.
void forget_value(const DeviceBuffer& value) noexcept;

// Called with a device before its pending work is listed: brings out what is only recorded yet.
void set_before_waiting(std::function<void(int device)> hook);

// The work on the stream (or on every stream of the device) that is not known to have ended.
std::vector<Work> pending_work(int device, StreamId stream);
std::vector<Work> pending_work(int device);

// Waits for all of it; throws pjrt::Error if some failed. The rest is waited for first.
void await_all(const std::vector<Work>& work);
bool all_ready(const std::vector<Work>& work);

void synchronize(int device);
void synchronize(int device, StreamId stream);

}  // namespace torch_tpu::runtime
