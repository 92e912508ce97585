// Large pieces of memory, which stay with the process when they are freed and are used again.
//
// One range of addresses is reserved, of which pages are taken when they are first written. Free
// blocks beside each other are one; the smallest that is large enough is taken. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "cache/fork_safe_mutex.h"

namespace torch_tpu::runtime {

class BlockHeap {
 public:
  // Reserves addresses, no memory. Throws std::bad_alloc if the system has none left to reserve.
  // When more than `max_kept` bytes are free and have been written, all are given back.
  explicit BlockHeap(size_t bytes, size_t max_kept = SIZE_MAX);
  ~BlockHeap();
  BlockHeap(const BlockHeap&) = delete;
  BlockHeap& operator=(const BlockHeap&) = delete;

  // At the beginning of a page. Null when there is no room.
  void* allocate(size_t bytes) noexcept;
  // Whether allocate() has given out this address, or one behind it.
  bool contains(const void* address) const noexcept {
    return reinterpret_cast<uintptr_t>(address) - begin_ < size_;
  }
  // What allocate() gave.
  void free(void* block) noexcept;
  size_t size_of(void* block) const noexcept;
  // Gives the memory of all free blocks back to the system.
  void trim() noexcept;

 private:
  using Address = uintptr_t;
  struct Block {
    size_t size;
    bool is_free;
  };
  using Blocks = std::map<Address, Block>;

  // Adds a block to its free neighbours.
  void join(Blocks::iterator block);
  void give_back() noexcept;

  uintptr_t begin_ = 0;
  const size_t size_;
  const size_t max_kept_;
  mutable cache::ForkSafeMutex mutex_;
  Blocks blocks_;  // all of the range
  std::set<std::pair<size_t, Address>> free_;
  Address used_end_ = 0;  // addresses from here on were never given out
  size_t kept_ = 0;       // bytes of free blocks that were given out and not back
};

}  // namespace torch_tpu::runtime
