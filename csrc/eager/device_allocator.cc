// The allocator PyTorch knows the device by. It hands out unfilled storages: memory is taken when
// a program's result is bound to one, so the statistics are those of live device arrays.
#include <c10/core/CachingDeviceAllocator.h>
#include <unistd.h>

#include <algorithm>

#include "eager/device_context.h"
#include "eager/device_storage.h"
#include "eager/fusion_graph.h"
#include "runtime/batch.h"
#include "runtime/host_heap.h"
#include "runtime/runtime.h"

namespace torch_tpu::eager {

namespace {

using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;

void set_stat(StatArray& array, int64_t current, int64_t peak, int64_t allocated, int64_t freed) {
  for (Stat& s : array) {
    s.current = current;
    s.peak = peak;
    s.allocated = allocated;
    s.freed = freed;
  }
}

// What was recorded or dispatched has taken and freed its memory.
runtime::MemoryCounters& settled_counters(int device) {
  flush_graph(device, CutReason::kSynchronize);
  runtime::drain_queue(device);
  return runtime::memory_counters(device);
}

class TpuAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t) override { return make_data_ptr(current_device()); }
  void copy_data(void*, const void*, size_t) const override {
    TORCH_CHECK(false, "tpu: storages cannot be copied as raw bytes; copy tensors instead");
  }

  bool initialized() override { return runtime::Runtime::device_count() > 0; }
  // Memory goes back to the plugin with its last tensor. On a CPU the heap keeps it.
  void emptyCache(c10::MempoolId_t) override {
    if (runtime::Runtime::initialized() && runtime::Runtime::get().is_cpu()) {
      runtime::release_freed_memory();
    }
  }
  // PJRT keeps memory until the programs that read it are done.
  void recordStream(const c10::DataPtr&, c10::Stream) override {}

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    check_device(device);
    const runtime::MemoryCounters& m = settled_counters(device);
    c10::CachingDeviceAllocator::DeviceStats stats;
    const int64_t total = m.total_count.load(), live = m.count.load();
    set_stat(stats.allocation, live, m.peak_count.load(), total, total - live);
    set_stat(stats.active, live, m.peak_count.load(), total, total - live);
    for (StatArray* bytes : {&stats.allocated_bytes, &stats.active_bytes, &stats.requested_bytes,
                             &stats.reserved_bytes}) {
      set_stat(*bytes, m.bytes.load(), m.peak_bytes.load(), m.total_allocated_bytes.load(),
               m.total_freed_bytes());
    }
    stats.num_ooms = m.out_of_memory.load();
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    check_device(device);
    runtime::MemoryCounters& m = settled_counters(device);
    m.total_allocated_bytes = 0;
    m.bytes_at_reset = m.bytes.load();
    m.total_count = m.count.load();
    m.out_of_memory = 0;
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    check_device(device);
    runtime::MemoryCounters& m = settled_counters(device);
    m.peak_bytes = m.bytes.load();
    m.peak_count = m.count.load();
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    check_device(device);
    const int64_t used = settled_counters(device).bytes.load();
    const int64_t total = total_memory(device);
    return {static_cast<size_t>(std::max<int64_t>(total - used, 0)), static_cast<size_t>(total)};
  }
};

TpuAllocator& allocator() {
  static TpuAllocator a;
  return a;
}

REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, &allocator());

}  // namespace

c10::Allocator* device_allocator() { return &allocator(); }

int64_t total_memory(int device) {
  int64_t total = 0;
  const auto stats = runtime::Runtime::get().device(device).memory_stats();
  if (stats && stats->bytes_limit) total = *stats->bytes_limit;
  // A CPU plugin has the machine's memory.
  if (total == 0) total = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGE_SIZE);
  const int64_t limit = runtime::memory_limit(device);
  return limit > 0 ? std::min(limit, total) : total;
}

}  // namespace torch_tpu::eager
