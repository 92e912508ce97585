#include "runtime/memory.h"

#include <array>
#include <cstdlib>

namespace torch_tpu::runtime {

namespace {

void raise_peak(std::atomic<int64_t>& peak, int64_t value) {
  int64_t seen = peak.load(std::memory_order_relaxed);
  while (value > seen && !peak.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}

int64_t limit_from_environment() {
  const char* text = std::getenv("TORCH_TPU_MEMORY_LIMIT");
  if (!text || !*text) return 0;
  char* end = nullptr;
  double value = std::strtod(text, &end);
  switch (*end) {
    case 'k':
    case 'K':
      value *= 1024.0;
      break;
    case 'm':
    case 'M':
      value *= 1024.0 * 1024;
      break;
    case 'g':
    case 'G':
      value *= 1024.0 * 1024 * 1024;
      break;
    default:
      break;
  }
  return static_cast<int64_t>(value);
}

std::atomic<int64_t>& limit() {
  static std::atomic<int64_t> value{limit_from_environment()};
  return value;
}

}  // namespace

void MemoryCounters::add(int64_t nbytes) {
  raise_peak(peak_bytes, bytes.fetch_add(nbytes, std::memory_order_relaxed) + nbytes);
  total_allocated_bytes.fetch_add(nbytes, std::memory_order_relaxed);
  raise_peak(peak_count, count.fetch_add(1, std::memory_order_relaxed) + 1);
  total_count.fetch_add(1, std::memory_order_relaxed);
}

void MemoryCounters::remove(int64_t nbytes) {
  bytes.fetch_sub(nbytes, std::memory_order_relaxed);
  total_freed_bytes.fetch_add(nbytes, std::memory_order_relaxed);
  count.fetch_sub(1, std::memory_order_relaxed);
}

MemoryCounters& memory_counters(int device) {
  static std::array<MemoryCounters, kMaxDevices> counters;
  return counters.at(static_cast<size_t>(device));
}

int64_t memory_limit() { return limit().load(std::memory_order_relaxed); }
void set_memory_limit(int64_t bytes) { limit().store(bytes, std::memory_order_relaxed); }

bool would_exceed_limit(int device, int64_t nbytes) {
  const int64_t bound = memory_limit();
  return bound > 0 &&
         memory_counters(device).bytes.load(std::memory_order_relaxed) + nbytes > bound;
}

}  // namespace torch_tpu::runtime
