#include "runtime/runtime.h"

#include <pthread.h>

#include <atomic>
#include <mutex>

#include "environment/environment.h"
#include "pjrt/error.h"
#include "runtime/host_heap.h"

namespace torch_tpu::runtime {

namespace {

std::atomic<Runtime*> g_runtime{nullptr};
std::atomic<bool> g_bad_fork{false};

struct Search {
  std::mutex mutex;
  std::function<pjrt::PluginSearch()> ask;
  std::optional<pjrt::PluginChoice> choice;
};

Search& search() {
  static Search s;
  return s;
}

// Asking takes Python's lock, so it is done without ours: whoever holds Python's may want ours.
pjrt::PluginChoice choose() {
  Search& s = search();
  std::function<pjrt::PluginSearch()> ask;
  {
    const std::lock_guard lock(s.mutex);
    if (s.choice) return *s.choice;
    ask = s.ask;
  }
  pjrt::PluginChoice choice = pjrt::choose_plugin(ask ? ask() : pjrt::PluginSearch{});
  const std::lock_guard lock(s.mutex);
  if (!s.choice) s.choice = std::move(choice);
  return *s.choice;
}

int cpu_devices_wanted() {
  return static_cast<int>(environment::integer("TORCH_TPU_CPU_DEVICES", 1, 1, kMaxDevices));
}

}  // namespace

PJRT_Buffer_Type to_pjrt(stablehlo::ElementType type) {
  using E = stablehlo::ElementType;
  switch (type) {
    case E::kPred:
      return PJRT_Buffer_Type_PRED;
    case E::kS8:
      return PJRT_Buffer_Type_S8;
    case E::kS16:
      return PJRT_Buffer_Type_S16;
    case E::kS32:
      return PJRT_Buffer_Type_S32;
    case E::kS64:
      return PJRT_Buffer_Type_S64;
    case E::kU8:
      return PJRT_Buffer_Type_U8;
    case E::kU16:
      return PJRT_Buffer_Type_U16;
    case E::kU32:
      return PJRT_Buffer_Type_U32;
    case E::kU64:
      return PJRT_Buffer_Type_U64;
    case E::kF8E4M3FN:
      return PJRT_Buffer_Type_F8E4M3FN;
    case E::kF8E5M2:
      return PJRT_Buffer_Type_F8E5M2;
    case E::kBF16:
      return PJRT_Buffer_Type_BF16;
    case E::kF16:
      return PJRT_Buffer_Type_F16;
    case E::kF32:
      return PJRT_Buffer_Type_F32;
    case E::kF64:
      return PJRT_Buffer_Type_F64;
    case E::kC64:
      return PJRT_Buffer_Type_C64;
    case E::kC128:
      return PJRT_Buffer_Type_C128;
  }
  return PJRT_Buffer_Type_INVALID;
}

Runtime::Runtime() : choice_(choose()) {
  const std::shared_ptr<pjrt::Plugin> plugin = pjrt::load_plugin(choice_);
  pjrt::Options options;
  // CPU plugins make four devices unless told; others refuse options they do not know.
  if (choice_.source != "libtpu") {
    keep_freed_memory(reinterpret_cast<const void*>(plugin->api()->PJRT_Client_Create));
    options["cpu_device_count"] = static_cast<int64_t>(cpu_devices_wanted());
  }
  try {
    client_ = pjrt::Client::create(plugin, options);
  } catch (const pjrt::Error&) {
    if (choice_.source != "TORCH_TPU_PJRT_PLUGIN") throw;
    client_ = pjrt::Client::create(plugin, {});
  }
  is_cpu_ = client_->platform_name() == "cpu";
  if (client_->devices().empty()) {
    throw pjrt::Error(9 /* failed precondition */, "the plugin " + choice_.path + " has no device");
  }
}

Runtime& Runtime::get() {
  if (Runtime* runtime = g_runtime.load(std::memory_order_acquire)) {
    if (g_bad_fork.load(std::memory_order_relaxed)) {
      throw pjrt::Error(9,
                        "Cannot re-initialize the tpu device in forked subprocess. To use it "
                        "with multiprocessing, you must use the 'spawn' start method");
    }
    return *runtime;
  }
  choose();  // before the lock: see there
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (Runtime* runtime = g_runtime.load(std::memory_order_acquire)) return *runtime;
  // Released on purpose: see the header.
  Runtime* runtime = std::unique_ptr<Runtime>(new Runtime()).release();
  pthread_atfork(nullptr, nullptr, [] { g_bad_fork.store(true); });
  g_runtime.store(runtime, std::memory_order_release);
  return *runtime;
}

bool Runtime::initialized() { return g_runtime.load(std::memory_order_acquire) != nullptr; }

void Runtime::set_plugin_search(std::function<pjrt::PluginSearch()> ask) {
  Search& s = search();
  const std::lock_guard lock(s.mutex);
  s.ask = std::move(ask);
  s.choice.reset();
}

int Runtime::device_count() noexcept {
  try {
    if (const Runtime* runtime = g_runtime.load(std::memory_order_acquire)) {
      return runtime->num_devices();
    }
    if (choose().source == "cpu") return cpu_devices_wanted();
    return get().num_devices();
  } catch (const std::exception&) {
    return 0;
  }
}

bool Runtime::in_bad_fork() { return g_bad_fork.load(std::memory_order_relaxed); }

const pjrt::Device& Runtime::device(int index) const {
  const auto devices = client_->devices();
  if (index < 0 || static_cast<size_t>(index) >= devices.size()) {
    throw pjrt::Error(3, "tpu:" + std::to_string(index) + " does not exist: this process has " +
                             std::to_string(devices.size()) +
                             " device(s) (TORCH_TPU_CPU_DEVICES=N makes N virtual ones on a CPU)");
  }
  return devices[static_cast<size_t>(index)];
}

DeviceBufferPtr Runtime::to_device(const void* data, const Layout* layout, int device_index,
                                   std::shared_ptr<void> keep_alive) {
  const auto semantics = keep_alive ? pjrt::HostSemantics::ImmutableUntilTransferCompletes
                                    : pjrt::HostSemantics::ImmutableOnlyDuringCall;
  std::function<void()> done;
  if (keep_alive) done = [keep = std::move(keep_alive)]() mutable { keep.reset(); };
  pjrt::Buffer buffer =
      client_->buffer_from_host(data, to_pjrt(layout->type.dtype), layout->type.dims,
                                device(device_index), semantics, std::move(done));
  return std::make_shared<const DeviceBuffer>(std::move(buffer), layout, device_index);
}

void Runtime::to_host(const DeviceBuffer& buffer, void* dst) {
  if (buffer.layout()->nbytes == 0) return;
  const pjrt::Buffer& array = buffer.pjrt();
  try {
    array.read(dst, buffer.layout()->nbytes);
  } catch (const pjrt::Error& e) {
    buffer.rethrow_named(e);
  }
}

}  // namespace torch_tpu::runtime
