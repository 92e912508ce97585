// The current device and stream, and PyTorch's guard over them, with events.
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>
#include <chrono>
#include <mutex>

#include "eager/device_context.h"
#include "eager/dispatch.h"
#include "runtime/runtime.h"

namespace torch_tpu::eager {

namespace {

thread_local int t_device = 0;
thread_local std::array<runtime::StreamId, runtime::kMaxDevices> t_streams{};

// Stream ids below this are the default stream (0) and the pool of torch.Stream's own.
std::atomic<runtime::StreamId> g_next_stream{1};

c10::Stream make_stream(int device, runtime::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kTpu, static_cast<c10::DeviceIndex>(device)),
                     id);
}

// What c10::Event holds: the work that was pending when the event was recorded.
struct EventState {
  std::mutex mutex;
  std::vector<runtime::DeviceBufferPtr> work;
  bool recorded = false;
  bool timing = false;
  // When the work was seen to be complete; set by the first wait or query after that.
  std::optional<std::chrono::steady_clock::time_point> completed;

  void complete() {
    if (!completed) completed = std::chrono::steady_clock::now();
    work.clear();
  }
};

EventState& state_of(void* event) {
  TORCH_CHECK(event != nullptr, "tpu: the event has not been recorded");
  return *static_cast<EventState*>(event);
}

struct TpuGuardImpl final : public c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kTpu; }

  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device previous = getDevice();
    if (device.index() >= 0 && device != previous) set_current_device(device.index());
    return previous;
  }
  c10::Device getDevice() const override {
    return c10::Device(kTpu, static_cast<c10::DeviceIndex>(t_device));
  }
  void setDevice(c10::Device device) const override {
    if (device.index() >= 0) set_current_device(device.index());
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0) t_device = device.index();
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(runtime::Runtime::device_count());
  }

  c10::Stream getStream(c10::Device device) const override {
    const int index = resolve_device(device);
    return make_stream(index, current_stream(index));
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return make_stream(resolve_device(device), 0);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return getNewStream(device, 0);
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return make_stream(resolve_device(device), g_next_stream.fetch_add(1));
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const int device = stream.device_index();
    return make_stream(device, exchange_current_stream(device, stream.id()));
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return reinterpret_cast<void*>(stream.id());
  }
  bool queryStream(const c10::Stream& stream) const override {
    return runtime::all_ready(runtime::pending_work(stream.device_index(), stream.id()));
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    with_torch_errors("synchronize",
                      [&] { runtime::synchronize(stream.device_index(), stream.id()); });
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    if (!runtime::Runtime::initialized()) return;
    with_torch_errors("synchronize",
                      [&] { runtime::synchronize(device < 0 ? t_device : device); });
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex,
              const c10::EventFlag flag) const override {
    if (*event == nullptr) *event = std::make_unique<EventState>().release();
    EventState& state = state_of(*event);
    std::vector<runtime::DeviceBufferPtr> work =
        runtime::pending_work(stream.device_index(), stream.id());
    const std::lock_guard lock(state.mutex);
    state.work = std::move(work);
    state.recorded = true;
    state.timing = flag == c10::EventFlag::BACKEND_DEFAULT;
    state.completed.reset();
    if (state.work.empty()) state.complete();
  }
  // PJRT orders work by data: a program never starts before its inputs are ready, whichever stream
  // it is on. What is left for an event is the waiting host, so blocking a stream adds the event's
  // work to what a later synchronize of that stream waits for.
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) return;
    EventState& state = state_of(event);
    const std::lock_guard lock(state.mutex);
    for (const runtime::DeviceBufferPtr& buffer : state.work) {
      runtime::record_work(stream.device_index(), stream.id(), buffer);
    }
  }
  bool queryEvent(void* event) const override {
    if (event == nullptr) return true;
    EventState& state = state_of(event);
    const std::lock_guard lock(state.mutex);
    if (!runtime::all_ready(state.work)) return false;
    state.complete();
    return true;
  }
  void synchronizeEvent(void* event) const override {
    if (event == nullptr) return;
    EventState& state = state_of(event);
    const std::lock_guard lock(state.mutex);
    with_torch_errors("Event.synchronize", [&] { runtime::await_all(state.work); });
    state.complete();
  }
  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    EventState& a = state_of(start);
    EventState& b = state_of(end);
    TORCH_CHECK(a.timing && b.timing,
                "Both events must be created with argument 'enable_timing=True'.");
    TORCH_CHECK(a.completed && b.completed, "Both events must be completed before calculating "
                                            "elapsed time: call synchronize() first.");
    return std::chrono::duration<double, std::milli>(*b.completed - *a.completed).count();
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    const std::unique_ptr<EventState> owned(static_cast<EventState*>(event));
  }
};

}  // namespace

int current_device() { return t_device; }

void set_current_device(int device) {
  const int count = runtime::Runtime::device_count();
  TORCH_CHECK(device >= 0 && device < count, "tpu:", device, " does not exist: there ",
              count == 1 ? "is 1 device" : "are " + std::to_string(count) + " devices",
              " (TORCH_TPU_CPU_DEVICES=N makes N virtual ones on a CPU)");
  t_device = device;
}

int resolve_device(c10::Device device) {
  return device.index() < 0 ? t_device : static_cast<int>(device.index());
}

runtime::StreamId current_stream(int device) { return t_streams[static_cast<size_t>(device)]; }

runtime::StreamId exchange_current_stream(int device, runtime::StreamId stream) {
  return std::exchange(t_streams[static_cast<size_t>(device)], stream);
}

C10_REGISTER_GUARD_IMPL(PrivateUse1, TpuGuardImpl);

}  // namespace torch_tpu::eager
