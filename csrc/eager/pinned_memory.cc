#include "eager/pinned_memory.h"

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/impl/alloc_cpu.h>

#include <map>
#include <memory>
#include <mutex>

#include "eager/device_context.h"

namespace torch_tpu::eager {

namespace {

// Live blocks by address, so that any pointer into one is recognised.
struct Blocks {
  std::mutex mutex;
  std::map<uintptr_t, size_t> sizes;
  at::HostStats stats;
};

// Never destroyed: tensors may die later than static objects.
Blocks& blocks() {
  static Blocks& b = *std::make_unique<Blocks>().release();
  return b;
}

void release(void* data) {
  Blocks& b = blocks();
  {
    const std::lock_guard lock(b.mutex);
    const auto it = b.sizes.find(reinterpret_cast<uintptr_t>(data));
    if (it != b.sizes.end()) {
      for (auto* count : {&b.stats.active_requests, &b.stats.allocations}) count->decrease(1);
      for (auto* bytes : {&b.stats.active_bytes, &b.stats.allocated_bytes}) {
        bytes->decrease(it->second);
      }
      ++b.stats.num_host_free;
      b.sizes.erase(it);
    }
  }
  c10::free_cpu(data);
}

// Nothing is cached: whoever copies asynchronously holds the memory until the copy is done.
class PinnedAllocator final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(size_t nbytes) override {
    void* data = c10::alloc_cpu(nbytes);
    if (data) {
      Blocks& b = blocks();
      const std::lock_guard lock(b.mutex);
      b.sizes[reinterpret_cast<uintptr_t>(data)] = nbytes;
      for (auto* count : {&b.stats.active_requests, &b.stats.allocations}) count->increase(1);
      for (auto* bytes : {&b.stats.active_bytes, &b.stats.allocated_bytes}) bytes->increase(nbytes);
      ++b.stats.num_host_alloc;
    }
    return {data, data, &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* dest, const void* src, size_t count) const override {
    default_copy_data(dest, src, count);
  }

  bool record_event(void* data, void*, c10::Stream) override { return is_pinned(data); }
  void empty_cache() override {}
  at::HostStats get_stats() override {
    const std::lock_guard lock(blocks().mutex);
    return blocks().stats;
  }
  void reset_accumulated_stats() override {
    Blocks& b = blocks();
    const std::lock_guard lock(b.mutex);
    for (auto* s : stats_of(b)) s->reset_accumulated();
    b.stats.num_host_alloc = 0;
    b.stats.num_host_free = 0;
  }
  void reset_peak_stats() override {
    Blocks& b = blocks();
    const std::lock_guard lock(b.mutex);
    for (auto* s : stats_of(b)) s->reset_peak();
  }

 private:
  static std::array<c10::CachingAllocator::Stat*, 4> stats_of(Blocks& b) {
    return {&b.stats.active_requests, &b.stats.active_bytes, &b.stats.allocations,
            &b.stats.allocated_bytes};
  }
};

PinnedAllocator& allocator() {
  static PinnedAllocator a;
  return a;
}

REGISTER_HOST_ALLOCATOR(c10::DeviceType::PrivateUse1, &allocator())

}  // namespace

c10::Allocator* pinned_allocator() { return &allocator(); }

bool is_pinned(const void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  Blocks& b = blocks();
  const std::lock_guard lock(b.mutex);
  auto it = b.sizes.upper_bound(address);
  if (it == b.sizes.begin()) return false;
  --it;
  return address < it->first + std::max<size_t>(it->second, 1);
}

}  // namespace torch_tpu::eager
