#include "eager/pinned_memory.h"

#include <c10/core/impl/alloc_cpu.h>

#include <map>
#include <mutex>

namespace torch_tpu::eager {

namespace {

// Live blocks by address, so that any pointer into one is recognised.
struct Blocks {
  std::mutex mutex;
  std::map<uintptr_t, size_t> sizes;
};

Blocks& blocks() {
  static Blocks b;
  return b;
}

void release(void* data) {
  {
    const std::lock_guard lock(blocks().mutex);
    blocks().sizes.erase(reinterpret_cast<uintptr_t>(data));
  }
  c10::free_cpu(data);
}

class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t nbytes) override {
    void* data = c10::alloc_cpu(nbytes);
    if (data) {
      const std::lock_guard lock(blocks().mutex);
      blocks().sizes[reinterpret_cast<uintptr_t>(data)] = nbytes;
    }
    return {data, data, &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* dest, const void* src, size_t count) const override {
    default_copy_data(dest, src, count);
  }
};

}  // namespace

c10::Allocator* pinned_allocator() {
  static PinnedAllocator allocator;
  return &allocator;
}

bool is_pinned(const void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  const std::lock_guard lock(blocks().mutex);
  auto it = blocks().sizes.upper_bound(address);
  if (it == blocks().sizes.begin()) return false;
  --it;
  return address < it->first + std::max<size_t>(it->second, 1);
}

}  // namespace torch_tpu::eager
