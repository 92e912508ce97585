#include "eager/precision.h"

#include <ATen/Context.h>
#include <ATen/ThreadLocalPythonObjects.h>

#include <array>
#include <atomic>

#include "runtime/runtime.h"

namespace torch_tpu::eager {

namespace {

using at::Float32Backend;
using at::Float32Op;
using at::Float32Precision;
using at::impl::ThreadLocalPythonObjects;

constexpr PrecisionCode kEmulated = 4;

const std::string& thread_key() {
  static const std::string key = "torch_tpu.precision";
  return key;
}

// An entry among the thread's objects that has no Python object, only a level.
struct ThreadLevel : c10::SafePyObject {
  explicit ThreadLevel(Precision level) : SafePyObject(nullptr, nullptr), precision(level) {}
  Precision precision;
};

// What PyTorch keeps tells a level that was set from the default: NONE is "nobody said anything",
// and set_float32_matmul_precision("highest") makes it IEEE. Of its backends the CPU's has one
// value for each level.
std::optional<Precision> process_precision() {
  const at::Context& context = at::globalContext();
  const Float32Precision said = context.float32Precision(Float32Backend::MKLDNN, Float32Op::MATMUL);
  if (said == Float32Precision::NONE) return std::nullopt;
  // Said to the CPU's backend alone, it is not meant for this device.
  if (context.float32Precision(Float32Backend::CUDA, Float32Op::MATMUL) == Float32Precision::NONE &&
      context.float32Precision(Float32Backend::GENERIC, Float32Op::ALL) == Float32Precision::NONE) {
    return std::nullopt;
  }
  switch (said) {
    case Float32Precision::IEEE:
      return Precision::kHighest;
    case Float32Precision::TF32:
      return Precision::kHigh;
    default:
      return Precision::kDefault;
  }
}

// -1: as the platform needs it.
std::atomic<int>& emulation() {
  static std::atomic<int> value{-1};
  return value;
}

bool platform_ignores_precision() {
  static const bool ignores = runtime::Runtime::get().platform() != "tpu";
  return ignores;
}

std::function<void(Precision)>& slow_precision_notice() {
  static std::function<void(Precision)> notice;
  return notice;
}

}  // namespace

std::optional<Precision> thread_precision() {
  if (!ThreadLocalPythonObjects::contains(thread_key())) return std::nullopt;
  return static_cast<const ThreadLevel&>(*ThreadLocalPythonObjects::get(thread_key())).precision;
}

void set_thread_precision(std::optional<Precision> precision) {
  if (precision) {
    ThreadLocalPythonObjects::set(thread_key(), std::make_shared<ThreadLevel>(*precision));
  } else {
    ThreadLocalPythonObjects::erase(thread_key());
  }
}

Precision current_precision() {
  if (const std::optional<Precision> own = thread_precision()) return *own;
  return process_precision().value_or(Precision::kDefault);
}

bool precision_emulated() {
  const int asked = emulation().load(std::memory_order_relaxed);
  return asked < 0 ? platform_ignores_precision() : asked == 1;
}

void set_precision_emulated(std::optional<bool> emulated) {
  emulation().store(emulated ? *emulated : -1, std::memory_order_relaxed);
}

PrecisionCode current_precision_code() {
  const auto level = static_cast<PrecisionCode>(current_precision()) + 1;
  return level | (precision_emulated() ? kEmulated : 0);
}

stablehlo::Float32Products float32_products(PrecisionCode code) {
  return {static_cast<Precision>((code & ~kEmulated) - 1), (code & kEmulated) != 0};
}

void set_slow_precision_notice(std::function<void(Precision)> notice) {
  slow_precision_notice() = std::move(notice);
}

void notice_precision(PrecisionCode code) {
  static std::array<std::atomic<bool>, 3> said{};
  const Precision precision = float32_products(code).precision;
  if (precision == Precision::kDefault || !slow_precision_notice()) return;
  if (!said[static_cast<size_t>(precision)].exchange(true)) slow_precision_notice()(precision);
}

}  // namespace torch_tpu::eager
