#include "runtime/memory.h"

#include <array>
#include <optional>

#include "environment/environment.h"

namespace torch_tpu::runtime {

namespace {

void raise_peak(std::atomic<int64_t>& peak, int64_t value) {
  int64_t seen = peak.load(std::memory_order_relaxed);
  while (value > seen && !peak.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}

int64_t limit_from_environment() {
  constexpr const char* kVariable = "TORCH_TPU_MEMORY_LIMIT";
  const std::optional<uint64_t> bytes = environment::bytes(kVariable);
  if (bytes == 0) {
    environment::refuse(kVariable, "at least one byte, such as 500M or 2.5G",
                        environment::text(kVariable));
  }
  return static_cast<int64_t>(bytes.value_or(0));
}

using Limits = std::array<std::atomic<int64_t>, kMaxDevices>;

std::atomic<int64_t>& limit(int device) {
  struct FromEnvironment {
    Limits values{};
    FromEnvironment() {
      const int64_t bytes = limit_from_environment();
      for (std::atomic<int64_t>& value : values) value.store(bytes);
    }
  };
  static FromEnvironment limits;
  return limits.values.at(static_cast<size_t>(device));
}

}  // namespace

void MemoryCounters::add(int64_t nbytes, int64_t arrays) {
  raise_peak(peak_bytes, bytes.fetch_add(nbytes, std::memory_order_relaxed) + nbytes);
  total_allocated_bytes.fetch_add(nbytes, std::memory_order_relaxed);
  raise_peak(peak_count, count.fetch_add(arrays, std::memory_order_relaxed) + arrays);
  total_count.fetch_add(arrays, std::memory_order_relaxed);
}

void MemoryCounters::remove(int64_t nbytes) {
  bytes.fetch_sub(nbytes, std::memory_order_relaxed);
  count.fetch_sub(1, std::memory_order_relaxed);
}

MemoryCounters& memory_counters(int device) {
  static std::array<MemoryCounters, kMaxDevices> counters;
  return counters.at(static_cast<size_t>(device));
}

int64_t memory_limit(int device) { return limit(device).load(std::memory_order_relaxed); }

void set_memory_limit(int device, int64_t bytes) {
  limit(device).store(bytes, std::memory_order_relaxed);
}

bool would_exceed_limit(int device, int64_t nbytes) {
  const int64_t bound = memory_limit(device);
  return bound > 0 &&
         memory_counters(device).bytes.load(std::memory_order_relaxed) + nbytes > bound;
}

}  // namespace torch_tpu::runtime
