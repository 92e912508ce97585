#include "runtime/batch.h"

#include <array>
#include <atomic>
#include <deque>
#include <thread>
#include <utility>

#include "cache/host_hooks.h"
#include "pjrt/error.h"
#include "runtime/memory.h"
#include "runtime/runtime.h"
#include "runtime/statistics.h"

namespace torch_tpu::runtime {

namespace {

// More than this are not queued.
constexpr size_t kMaxQueued = 64;

// Never destroyed: the thread may still wait when the process ends.
struct Queue {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::shared_ptr<Batch>> batches;  // the first one is running
  std::atomic<size_t> size{0};
  bool started = false;

  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [this] { return !batches.empty(); });
      std::shared_ptr<Batch> batch = batches.front();
      lock.unlock();
      batch->run();
      batch.reset();
      lock.lock();
      batches.pop_front();
      size.store(batches.size(), std::memory_order_release);
      changed.notify_all();
    }
  }
};

Queue& queue_of(int device) {
  using All = std::array<Queue, kMaxDevices>;
  static All& queues = *std::make_unique<All>().release();
  return queues.at(static_cast<size_t>(device));
}

}  // namespace

void Batch::demand() const {
  const auto ended = [this] { return done_; };
  {
    const std::lock_guard lock(mutex_);
    if (done_) {
      if (error_) std::rethrow_exception(error_);
      return;
    }
  }
  cache::blocking([&] {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, ended);
  });
  const std::lock_guard lock(mutex_);
  if (error_) std::rethrow_exception(error_);
}

void Batch::fulfil(size_t i, pjrt::Buffer array) const { outputs[i]->fulfil(std::move(array)); }

void Batch::execute() {
  const pjrt::Executable& executable = program->executable();
  Runtime& runtime = Runtime::get();
  std::vector<PJRT_Buffer*> handles;
  handles.reserve(inputs.size());
  for (const DeviceBufferPtr& input : inputs) handles.push_back(input->pjrt().handle());
  std::vector<int64_t> kept;
  int64_t new_bytes = 0;
  for (const DeviceBufferPtr& output : outputs) {
    new_bytes += static_cast<int64_t>(output->layout()->nbytes);
  }
  std::vector<int64_t> given;
  for (const int64_t i : donated) {
    const DeviceBufferPtr& input = inputs[static_cast<size_t>(i)];
    if (!is_awaited && input.use_count() == 1) {
      given.push_back(i);
      new_bytes -= static_cast<int64_t>(input->layout()->nbytes);
    } else {
      kept.push_back(i);
    }
  }
  if (!outputs_counted && would_exceed_limit(device, new_bytes)) {
    memory_counters(device).out_of_memory.fetch_add(1);
    throw pjrt::Error(PJRT_Error_Code_RESOURCE_EXHAUSTED,
                      "no room for " + std::to_string(new_bytes) +
                          " bytes of a program's results; limit " +
                          std::to_string(memory_limit(device)) +
                          " bytes (TORCH_TPU_MEMORY_LIMIT or set_per_process_memory_fraction)");
  }
  std::vector<PJRT_Buffer*> results(outputs.size(), nullptr);
  // What is given away is gone even if running fails.
  for (const int64_t i : given) inputs[static_cast<size_t>(i)]->given_away();
  try {
    executable.execute(handles.data(), handles.size(), results.data(), kept,
                       runtime.device(device).handle);
  } catch (const pjrt::Error& e) {
    // Whoever reads the results has called another operator.
    throw pjrt::Error(e.code(), program->what() + ": " + e.what());
  }
  statistics().programs.fetch_add(1, std::memory_order_relaxed);
  std::vector<pjrt::Buffer> arrays;
  for (PJRT_Buffer* result : results) {
    arrays.push_back(pjrt::Buffer::adopt(runtime.client().api(), result));
  }
  if (is_awaited) {
    for (const pjrt::Buffer& array : arrays) array.ready().await();
  }
  for (size_t i = 0; i < arrays.size(); ++i) fulfil(i, std::move(arrays[i]));
}

void Batch::mark_queued(int change) const {
  for (const auto* buffers : {&inputs, &outputs}) {
    for (const DeviceBufferPtr& buffer : *buffers) buffer->queued().fetch_add(change);
  }
}

void Batch::finish(std::exception_ptr error) noexcept {
  if (std::exchange(queued_, false)) mark_queued(-1);
  inputs.clear();
  outputs.clear();  // they hold this batch
  recover = {};
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
    error_ = std::move(error);
  }
  changed_.notify_all();
}

void Batch::run() noexcept {
  std::exception_ptr error;
  try {
    try {
      execute();
    } catch (...) {
      if (!recover) throw;
      recover(*this, std::current_exception());
    }
    if (!outputs.empty()) record_work(device, stream, outputs[0]);
  } catch (...) {
    error = std::current_exception();
  }
  finish(std::move(error));
}

void submit(const std::shared_ptr<Batch>& batch) {
  for (const DeviceBufferPtr& input : batch->inputs) input->begin();
  Queue& queue = queue_of(batch->device);
  if (batch->program->ready() && queue.size.load(std::memory_order_acquire) == 0) {
    batch->run();
    return;
  }
  batch->program->begin_in_background();
  batch->set_queued();
  const auto add = [&] {
    std::unique_lock lock(queue.mutex);
    if (!queue.started) {
      queue.started = true;
      std::thread([&queue] { queue.run(); }).detach();
    }
    queue.changed.wait(lock, [&] { return queue.batches.size() < kMaxQueued; });
    queue.batches.push_back(batch);
    queue.size.store(queue.batches.size(), std::memory_order_release);
    queue.changed.notify_all();
  };
  if (queue.size.load(std::memory_order_acquire) + 1 >= kMaxQueued) {
    cache::blocking(add);
  } else {
    add();
  }
}

bool queue_is_empty(int device) {
  return queue_of(device).size.load(std::memory_order_acquire) == 0;
}

void drain_queue(int device) {
  if (queue_is_empty(device)) return;
  Queue& queue = queue_of(device);
  cache::blocking([&] {
    std::unique_lock lock(queue.mutex);
    queue.changed.wait(lock, [&] { return queue.batches.empty(); });
  });
}

}  // namespace torch_tpu::runtime
