#include "runtime/block_heap.h"

#include <sys/mman.h>

#include <algorithm>
#include <iterator>
#include <mutex>
#include <new>

namespace torch_tpu::runtime {

namespace {

// Of sizes and addresses; a multiple of the pages of all systems.
constexpr size_t kGrain = 64 << 10;

size_t rounded_up(size_t bytes) { return (bytes + kGrain - 1) / kGrain * kGrain; }

}  // namespace

BlockHeap::BlockHeap(size_t bytes, size_t max_kept)
    : size_(rounded_up(bytes)), max_kept_(max_kept) {
  const void* const range = mmap(nullptr, size_, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) throw std::bad_alloc();
  begin_ = used_end_ = reinterpret_cast<uintptr_t>(range);
  blocks_.emplace(begin_, Block{size_, true});
  free_.emplace(size_, begin_);
}

BlockHeap::~BlockHeap() { munmap(reinterpret_cast<void*>(begin_), size_); }

void* BlockHeap::allocate(size_t bytes) noexcept {
  if (bytes > size_) return nullptr;
  const size_t wanted = std::max(rounded_up(bytes), kGrain);
  const std::lock_guard lock(mutex_);
  const auto fit = free_.lower_bound({wanted, 0});
  if (fit == free_.end()) return nullptr;
  const auto [size, address] = *fit;
  if (size > wanted) {
    try {
      const auto rest = blocks_.emplace(address + wanted, Block{size - wanted, true}).first;
      try {
        free_.emplace(size - wanted, address + wanted);
      } catch (const std::bad_alloc&) {
        blocks_.erase(rest);
        throw;
      }
    } catch (const std::bad_alloc&) {
      return nullptr;
    }
  }
  free_.erase(fit);
  blocks_.at(address) = {wanted, false};
  if (address < used_end_) kept_ -= std::min({kept_, wanted, used_end_ - address});
  used_end_ = std::max(used_end_, address + wanted);
  return reinterpret_cast<void*>(address);
}

void BlockHeap::free(void* block) noexcept {
  const std::lock_guard lock(mutex_);
  const auto it = blocks_.find(reinterpret_cast<Address>(block));
  if (it == blocks_.end() || it->second.is_free) return;
  const size_t size = it->second.size;
  try {
    join(it);
  } catch (const std::bad_alloc&) {
    return;  // its memory is lost, which is better than the process
  }
  kept_ += size;
  if (kept_ > max_kept_) give_back();
}

void BlockHeap::join(Blocks::iterator block) {
  auto [address, size] = std::pair(block->first, block->second.size);
  const auto next = std::next(block);
  const bool joins_next = next != blocks_.end() && next->second.is_free;
  const bool joins_before = block != blocks_.begin() && std::prev(block)->second.is_free;
  const auto before = joins_before ? std::prev(block) : block;
  const size_t total =
      (joins_before ? before->second.size : 0) + size + (joins_next ? next->second.size : 0);
  free_.emplace(total, before->first);  // what can fail comes first
  if (joins_next) {
    free_.erase({next->second.size, next->first});
    blocks_.erase(next);
  }
  if (joins_before) {
    free_.erase({before->second.size, before->first});
    blocks_.erase(block);
  }
  before->second = {total, true};
}

size_t BlockHeap::size_of(void* block) const noexcept {
  const std::lock_guard lock(mutex_);
  const auto it = blocks_.find(reinterpret_cast<Address>(block));
  return it == blocks_.end() ? 0 : it->second.size;
}

void BlockHeap::trim() noexcept {
  const std::lock_guard lock(mutex_);
  give_back();
}

void BlockHeap::give_back() noexcept {
  kept_ = 0;
  for (const auto& [size, address] : free_) {
    madvise(reinterpret_cast<void*>(address), size, MADV_DONTNEED);
  }
}

}  // namespace torch_tpu::runtime
