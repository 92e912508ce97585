#include "runtime/work_queue.h"

#include <algorithm>
#include <array>
#include <deque>
#include <exception>
#include <map>
#include <mutex>

namespace torch_tpu::runtime {

namespace {

using WeakBuffer = std::weak_ptr<const DeviceBuffer>;

// Beyond this many remembered results, those already computed are dropped.
constexpr size_t kSweepAt = 1024;

struct StreamWork {
  std::deque<WeakBuffer> results;
  size_t sweep_at = kSweepAt;
};

struct DeviceWork {
  std::mutex mutex;
  std::map<StreamId, StreamWork> streams;
};

DeviceWork& device_work(int device) {
  static std::array<DeviceWork, kMaxDevices> work;
  return work.at(static_cast<size_t>(device));
}

void sweep(StreamWork& work) {
  std::deque<WeakBuffer> left;
  for (const WeakBuffer& weak : work.results) {
    const DeviceBufferPtr buffer = weak.lock();
    if (buffer && !buffer->pjrt().ready().is_ready()) left.push_back(weak);
  }
  work.results = std::move(left);
  work.sweep_at = std::max(kSweepAt, 2 * work.results.size());
}

void collect(const StreamWork& work, std::vector<DeviceBufferPtr>& out) {
  for (const WeakBuffer& weak : work.results) {
    if (DeviceBufferPtr buffer = weak.lock()) out.push_back(std::move(buffer));
  }
}

}  // namespace

void record_work(int device, StreamId stream, const DeviceBufferPtr& result) {
  DeviceWork& d = device_work(device);
  const std::lock_guard lock(d.mutex);
  StreamWork& work = d.streams[stream];
  while (!work.results.empty() && work.results.front().expired()) work.results.pop_front();
  work.results.push_back(result);
  if (work.results.size() >= work.sweep_at) sweep(work);
}

std::vector<DeviceBufferPtr> pending_work(int device, StreamId stream) {
  DeviceWork& d = device_work(device);
  const std::lock_guard lock(d.mutex);
  std::vector<DeviceBufferPtr> out;
  const auto it = d.streams.find(stream);
  if (it != d.streams.end()) {
    sweep(it->second);
    collect(it->second, out);
  }
  return out;
}

std::vector<DeviceBufferPtr> pending_work(int device) {
  DeviceWork& d = device_work(device);
  const std::lock_guard lock(d.mutex);
  std::vector<DeviceBufferPtr> out;
  for (auto& [id, work] : d.streams) {
    sweep(work);
    collect(work, out);
  }
  return out;
}

void await_all(const std::vector<DeviceBufferPtr>& work) {
  std::exception_ptr failure;
  for (const DeviceBufferPtr& buffer : work) {
    try {
      buffer->pjrt().ready().await();
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

bool all_ready(const std::vector<DeviceBufferPtr>& work) {
  for (const DeviceBufferPtr& buffer : work) {
    if (!buffer->pjrt().ready().is_ready()) return false;
  }
  return true;
}

void synchronize(int device) { await_all(pending_work(device)); }
void synchronize(int device, StreamId stream) { await_all(pending_work(device, stream)); }

}  // namespace torch_tpu::runtime
