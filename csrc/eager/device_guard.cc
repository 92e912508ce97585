// The current device and stream, and PyTorch's guard over them, with events.
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <chrono>
#include <mutex>

#include "eager/device_context.h"
#include "eager/dispatch.h"
#include "runtime/runtime.h"

namespace torch_tpu::eager {

namespace {

using Clock = std::chrono::steady_clock;

thread_local int t_device = 0;
thread_local std::array<runtime::StreamId, runtime::kMaxDevices> t_streams{};

// 0 is the default stream.
std::atomic<runtime::StreamId> g_next_stream{1};

c10::Stream make_stream(int device, runtime::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kTpu, static_cast<c10::DeviceIndex>(device)),
                     id);
}

// When the last of some work ended. The work itself sets the time, on the plugin's threads.
struct Stamp {
  std::atomic<int64_t> left;
  std::atomic<Clock::rep> at{0};

  explicit Stamp(int64_t count) : left(count) {}
  void one_ended() {
    at.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
    left.fetch_sub(1, std::memory_order_release);
    left.notify_all();
  }
  // The work is known to have ended; what may be missing is that one_ended() was called.
  Clock::time_point time() const {
    for (int64_t n = left.load(std::memory_order_acquire); n > 0;
         n = left.load(std::memory_order_acquire)) {
      left.wait(n);
    }
    return Clock::time_point(Clock::duration(at.load(std::memory_order_relaxed)));
  }
};

// What c10::Event holds: the work that was pending when the event was recorded.
struct EventState {
  std::mutex mutex;
  std::vector<runtime::Work> work;
  std::shared_ptr<const Stamp> stamp;  // only with timing

  std::vector<runtime::Work> pending() {
    const std::lock_guard lock(mutex);
    return work;
  }
  std::shared_ptr<const Stamp> timing() {
    const std::lock_guard lock(mutex);
    return stamp;
  }
  bool query() {
    const std::lock_guard lock(mutex);
    if (!runtime::all_ready(work)) return false;
    work.clear();
    return true;
  }
};

EventState& state_of(void* event) {
  TORCH_CHECK(event != nullptr, "tpu: the event has not been recorded");
  return *static_cast<EventState*>(event);
}

std::shared_ptr<const Stamp> stamp_of(const std::vector<runtime::Work>& work) {
  const auto stamp = std::make_shared<Stamp>(static_cast<int64_t>(work.size()) + 1);
  for (const runtime::Work& w : work) w.on_ready([stamp] { stamp->one_ended(); });
  stamp->one_ended();  // this call: work that has ended before is not waited for
  return stamp;
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
  c10::DeviceCapability getDeviceCapability(c10::Device) const override {
    c10::DeviceCapability capability;
    capability.capability_data.capability_bits = 0;
    auto& has = capability.capability_data.supported_scalar_types;
    has.has_Bool = has.has_Byte = has.has_Char = has.has_Short = has.has_Int = has.has_Long = 1;
    has.has_UInt16 = has.has_UInt32 = has.has_UInt64 = 1;
    has.has_Half = has.has_BFloat16 = has.has_Float = has.has_Double = 1;
    has.has_ComplexFloat = has.has_ComplexDouble = 1;
    has.has_Float8_e4m3fn = has.has_Float8_e5m2 = 1;
    return capability;
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
    const int index = resolve_device(device);
    check_device(index);
    return make_stream(index, g_next_stream.fetch_add(1));
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
    const int index = device < 0 ? t_device : device;
    check_device(index);
    if (!runtime::Runtime::initialized()) return;
    with_torch_errors("synchronize", [&] { runtime::synchronize(index); });
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex,
              const c10::EventFlag flag) const override {
    if (*event == nullptr) *event = std::make_unique<EventState>().release();
    EventState& state = state_of(*event);
    std::vector<runtime::Work> work = runtime::pending_work(stream.device_index(), stream.id());
    std::shared_ptr<const Stamp> stamp;
    if (flag == c10::EventFlag::BACKEND_DEFAULT) stamp = stamp_of(work);
    const std::lock_guard lock(state.mutex);
    state.work = std::move(work);
    state.stamp = std::move(stamp);
  }
  // PJRT orders work by data: a program never starts before its inputs are ready, whichever stream
  // it is on. What is left for an event is the waiting host, so blocking a stream adds the event's
  // work to what a later synchronize of that stream waits for.
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) return;
    for (const runtime::Work& work : state_of(event).pending()) {
      runtime::record_work(stream.device_index(), stream.id(), work);
    }
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || state_of(event).query();
  }
  void synchronizeEvent(void* event) const override {
    if (event == nullptr) return;
    EventState& state = state_of(event);
    with_torch_errors("Event.synchronize", [&] { runtime::await_all(state.pending()); });
    state.query();
  }
  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    EventState& a = state_of(start);
    EventState& b = state_of(end);
    TORCH_CHECK(a.query() && b.query(),
                "Both events must be completed before calculating elapsed time: call "
                "synchronize() on the second one first.");
    const std::shared_ptr<const Stamp> from = a.timing(), to = b.timing();
    TORCH_CHECK(from && to, "Both events must be created with argument 'enable_timing=True'.");
    return std::chrono::duration<double, std::milli>(to->time() - from->time()).count();
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    const std::unique_ptr<EventState> owned(static_cast<EventState*>(event));
  }
};

// PJRT keeps a value until the programs and copies that read it are done.
void record_stream(at::Tensor&, c10::Stream) {}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { m.impl("record_stream", TORCH_FN(record_stream)); }

}  // namespace

int current_device() { return t_device; }

void check_device(int device) {
  const int count = runtime::Runtime::device_count();
  if (device >= 0 && device < count) return;
  if (count == 0 && device == 0) {
    // Says why there is none.
    with_torch_errors("tpu", [] { runtime::Runtime::get(); });
  }
  TORCH_CHECK(false, "tpu:", device, " does not exist: there ",
              count == 1 ? "is 1 device" : "are " + std::to_string(count) + " devices",
              " (TORCH_TPU_CPU_DEVICES=N makes N virtual ones on a CPU)");
}

void set_current_device(int device) {
  check_device(device);
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
