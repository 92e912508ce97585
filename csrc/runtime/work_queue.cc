#include "runtime/work_queue.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <exception>
#include <map>
#include <mutex>

#include "pjrt/error.h"
#include "runtime/batch.h"

namespace torch_tpu::runtime {

namespace {

// Beyond this many remembered entries, those that have ended are dropped.
constexpr size_t kSweepAt = 1024;

// Does not keep the memory of a value that nobody else holds.
struct Entry {
  std::weak_ptr<const DeviceBuffer> value;
  std::shared_ptr<const pjrt::Event> done;

  bool forgotten() const { return !done && value.expired(); }
};

struct StreamWork {
  std::deque<Entry> entries;
  size_t sweep_at = kSweepAt;
};

struct DeviceWork {
  std::mutex mutex;
  std::map<StreamId, StreamWork> streams;
  // The result recorded last. Read without the lock by every destructor.
  std::atomic<const DeviceBuffer*> last{nullptr};
  StreamId last_stream = 0;
};

// Never destroyed: buffers may die later than static objects.
DeviceWork& device_work(int device) {
  using All = std::array<DeviceWork, kMaxDevices>;
  static All& work = *std::make_unique<All>().release();
  return work.at(static_cast<size_t>(device));
}

std::function<void(int)>& before_waiting() {
  static std::function<void(int)> hook;
  return hook;
}

// What is recorded or queued becomes work that can be waited for.
void bring_out(int device) {
  if (before_waiting()) before_waiting()(device);
  drain_queue(device);
}

// Whether a value has been computed, or was given to another program in the meantime.
bool ended(const DeviceBuffer& value) {
  try {
    return value.pjrt().ready().is_ready();
  } catch (const pjrt::Error&) {
    return true;
  }
}

// Drops the entries that have ended. What was looked at is added to `seen`, which the caller frees
// after the lock: freeing a value may need it.
std::vector<Work> sweep(StreamWork& work, std::vector<DeviceBufferPtr>& seen) {
  std::vector<Work> pending;
  std::deque<Entry> left;
  for (Entry& entry : work.entries) {
    if (entry.done) {
      if (entry.done->is_ready()) continue;
      pending.emplace_back(entry.done);
    } else {
      DeviceBufferPtr value = entry.value.lock();
      if (!value) continue;
      seen.push_back(value);
      if (ended(*value)) continue;
      pending.emplace_back(std::move(value));
    }
    left.push_back(std::move(entry));
  }
  work.entries = std::move(left);
  work.sweep_at = std::max(kSweepAt, 2 * work.entries.size());
  return pending;
}

void add(StreamWork& work, Entry entry, std::vector<DeviceBufferPtr>& seen) {
  while (!work.entries.empty() && work.entries.front().forgotten()) work.entries.pop_front();
  work.entries.push_back(std::move(entry));
  if (work.entries.size() >= work.sweep_at) sweep(work, seen);
}

}  // namespace

void Work::await() const {
  if (done_) return done_->await();
  try {
    value_->await();
  } catch (const pjrt::Error&) {
    // Given to another program just now, which will be waited for.
    if (!value_->pjrt().is_deleted()) throw;
  }
}

bool Work::is_ready() const { return done_ ? done_->is_ready() : ended(*value_); }

void Work::on_ready(std::function<void()> callback) const {
  const auto run = [callback = std::move(callback)](const std::string*) { callback(); };
  done_ ? done_->on_ready(run) : value_->pjrt().ready().on_ready(run);
}

void record_work(int device, StreamId stream, const DeviceBufferPtr& result) {
  DeviceWork& d = device_work(device);
  std::vector<DeviceBufferPtr> seen;
  const std::lock_guard lock(d.mutex);
  add(d.streams[stream], {result, nullptr}, seen);
  d.last_stream = stream;
  d.last.store(result.get(), std::memory_order_relaxed);
}

void record_work(int device, StreamId stream, std::shared_ptr<const pjrt::Event> done) {
  DeviceWork& d = device_work(device);
  std::vector<DeviceBufferPtr> seen;
  const std::lock_guard lock(d.mutex);
  add(d.streams[stream], {{}, std::move(done)}, seen);
}

void record_work(int device, StreamId stream, const Work& work) {
  DeviceWork& d = device_work(device);
  std::vector<DeviceBufferPtr> seen;
  const std::lock_guard lock(d.mutex);
  add(d.streams[stream], {work.value_, work.done_}, seen);
}

void forget_value(const DeviceBuffer& value) noexcept {
  DeviceWork& d = device_work(value.device());
  if (d.last.load(std::memory_order_relaxed) != &value) [[likely]] {
    return;
  }
  try {
    auto done = std::make_shared<const pjrt::Event>(value.pjrt().ready());
    std::vector<DeviceBufferPtr> seen;
    const std::lock_guard lock(d.mutex);
    if (d.last.load(std::memory_order_relaxed) != &value) return;
    d.last.store(nullptr, std::memory_order_relaxed);
    if (!done->is_ready()) add(d.streams[d.last_stream], {{}, std::move(done)}, seen);
  } catch (const std::exception&) {
    // Then this result is not waited for.
  }
}

void set_before_waiting(std::function<void(int device)> hook) {
  before_waiting() = std::move(hook);
}

std::vector<Work> pending_work(int device, StreamId stream) {
  bring_out(device);
  DeviceWork& d = device_work(device);
  std::vector<DeviceBufferPtr> seen;
  const std::lock_guard lock(d.mutex);
  const auto it = d.streams.find(stream);
  return it == d.streams.end() ? std::vector<Work>() : sweep(it->second, seen);
}

std::vector<Work> pending_work(int device) {
  bring_out(device);
  DeviceWork& d = device_work(device);
  std::vector<DeviceBufferPtr> seen;
  const std::lock_guard lock(d.mutex);
  std::vector<Work> out;
  for (auto& [id, work] : d.streams) {
    std::vector<Work> pending = sweep(work, seen);
    std::move(pending.begin(), pending.end(), std::back_inserter(out));
  }
  return out;
}

void await_all(const std::vector<Work>& work) {
  std::exception_ptr failure;
  for (const Work& w : work) {
    try {
      w.await();
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

bool all_ready(const std::vector<Work>& work) {
  return std::all_of(work.begin(), work.end(), [](const Work& w) { return w.is_ready(); });
}

void synchronize(int device) { await_all(pending_work(device)); }
void synchronize(int device, StreamId stream) { await_all(pending_work(device, stream)); }

}  // namespace torch_tpu::runtime
