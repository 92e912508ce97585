#include "eager/address_space.h"

#include <c10/util/Exception.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

namespace torch_tpu::eager {

namespace {

// An address is a slot's number and 40 bits (a TiB) for the place in the
// storage.
constexpr int kPlaceBits = 40;
constexpr size_t kChunk = size_t{1} << 14;
constexpr size_t kMaxChunks = size_t{1} << 9;
// Threads take and return free slots in batches, so that they seldom meet.
constexpr size_t kBatch = 64;

using Slot = uint32_t;
using Chunk = std::array<std::atomic<DeviceStorage*>, kChunk>;

struct Slots {
  std::mutex mutex;
  std::vector<Slot> free;
  Slot next = 1;  // 0 would be the null address
  std::array<std::atomic<Chunk*>, kMaxChunks> chunks{};

  std::atomic<DeviceStorage*>& operator[](Slot slot) {
    return (*chunks[slot / kChunk].load(std::memory_order_acquire))[slot % kChunk];
  }
  void take(std::vector<Slot>& out) {
    const std::lock_guard lock(mutex);
    while (!free.empty() && out.size() < kBatch) {
      out.push_back(free.back());
      free.pop_back();
    }
    while (out.size() < kBatch && next < kChunk * kMaxChunks) {
      if (!chunks[next / kChunk].load()) {
        chunks[next / kChunk].store(std::make_unique<Chunk>().release());
      }
      out.push_back(next++);
    }
  }
  void give_back(std::vector<Slot>& from, size_t keep) {
    const std::lock_guard lock(mutex);
    free.insert(free.end(), from.begin() + static_cast<std::ptrdiff_t>(keep), from.end());
    from.resize(keep);
  }
};

// Never destroyed: tensors may die later than static objects.
Slots& slots() {
  static Slots& s = *std::make_unique<Slots>().release();
  return s;
}

// Trivially destructible, since tensors may also die later than a thread's
// other objects.
thread_local bool t_gone = false;

struct FreeSlots {
  std::vector<Slot> slots;
  ~FreeSlots() {
    t_gone = true;
    eager::slots().give_back(slots, 0);
  }
};

FreeSlots& my_free_slots() {
  thread_local FreeSlots mine;
  return mine;
}

}  // namespace

uintptr_t take_address(DeviceStorage* storage) {
  std::vector<Slot> passing;
  std::vector<Slot>& free = t_gone ? passing : my_free_slots().slots;
  if (free.empty()) slots().take(free);
  TORCH_CHECK(!free.empty(), "tpu: too many tensors at once, the limit is ", kChunk * kMaxChunks);
  const Slot slot = free.back();
  free.pop_back();
  if (!passing.empty()) slots().give_back(passing, 0);
  slots()[slot].store(storage, std::memory_order_relaxed);
  return static_cast<uintptr_t>(slot) << kPlaceBits;
}

void give_address_back(uintptr_t address) noexcept {
  const auto slot = static_cast<Slot>(address >> kPlaceBits);
  slots()[slot].store(nullptr, std::memory_order_relaxed);
  if (t_gone) return;  // the thread ends: the number is lost
  std::vector<Slot>& free = my_free_slots().slots;
  free.push_back(slot);
  if (free.size() > 2 * kBatch) slots().give_back(free, kBatch);
}

DeviceStorage* storage_at(uintptr_t address) noexcept {
  const auto slot = static_cast<Slot>(address >> kPlaceBits);
  if (address != static_cast<uintptr_t>(slot) << kPlaceBits || slot == 0) return nullptr;
  if (slot / kChunk >= kMaxChunks || !slots().chunks[slot / kChunk].load()) return nullptr;
  return slots()[slot].load(std::memory_order_relaxed);
}

}  // namespace torch_tpu::eager
