// Accounting of the device memory that live arrays take.
#pragma once

#include <atomic>
#include <cstdint>

namespace torch_tpu::runtime {

inline constexpr int kMaxDevices = 64;

// One device's counters. All are monotonic or exact; reading them is never a lock.
struct MemoryCounters {
  std::atomic<int64_t> bytes{0};
  std::atomic<int64_t> peak_bytes{0};
  std::atomic<int64_t> total_allocated_bytes{0};
  std::atomic<int64_t> count{0};  // live arrays
  std::atomic<int64_t> peak_count{0};
  std::atomic<int64_t> total_count{0};
  std::atomic<int64_t> out_of_memory{0};

  // Live bytes and those freed are together what was allocated.
  std::atomic<int64_t> bytes_at_reset{0};
  int64_t total_freed_bytes() const { return total_allocated_bytes + bytes_at_reset - bytes; }

  void add(int64_t nbytes, int64_t arrays = 1);
  void remove(int64_t nbytes);
};

MemoryCounters& memory_counters(int device);

// The limit on a device's live bytes, 0 for none: TORCH_TPU_MEMORY_LIMIT (bytes, or with a K, M or
// G suffix) or set_memory_limit. On a device that has a limit of its own the plugin enforces that
// one as well. Throws std::invalid_argument when the variable is not understood.
int64_t memory_limit(int device);
void set_memory_limit(int device, int64_t bytes);

// Whether `nbytes` more would go beyond the limit.
bool would_exceed_limit(int device, int64_t nbytes);

}  // namespace torch_tpu::runtime
