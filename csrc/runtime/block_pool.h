// Memory for small objects of which a program makes and drops hundreds at a time.
#pragma once

#include <array>
#include <cstddef>
#include <new>

namespace torch_tpu::runtime {

// Blocks of one size. Each thread keeps those that were given back on it, so that taking and giving
// back are a few instructions; malloc takes as little only for the first seven of a size.
template <size_t kSize>
class BlockPool {
 public:
  static void* take() {
    Kept& kept = kept_;
    return kept.count > 0 ? kept.blocks[--kept.count] : ::operator new(kSize);
  }
  static void give_back(void* block) noexcept {
    Kept& kept = kept_;
    if (kept.state == Kept::kNew) [[unlikely]]
      open();
    if (kept.count < kept.room) {
      kept.blocks[kept.count++] = block;
    } else {
      ::operator delete(block);
    }
  }

 private:
  static constexpr size_t kMax = 1024;

  // Has no destructor: objects may die later than what else their thread has.
  struct Kept {
    enum State : unsigned char { kNew, kOpen, kClosed } state = kNew;
    size_t count = 0, room = 0;
    std::array<void*, kMax> blocks;
  };
  struct Closer {
    ~Closer() {
      Kept& kept = kept_;
      while (kept.count > 0) ::operator delete(kept.blocks[--kept.count]);
      kept.room = 0;
      kept.state = Kept::kClosed;
    }
  };

  static void open() noexcept {
    thread_local const Closer closer;
    static_cast<void>(closer);
    kept_.room = kMax;
    kept_.state = Kept::kOpen;
  }

  static inline thread_local constinit Kept kept_{};
};

// A class whose objects come from the pool.
template <typename Base>
class Pooled final : public Base {
 public:
  using Base::Base;
  static void* operator new(size_t) { return BlockPool<sizeof(Pooled)>::take(); }
  static void operator delete(void* p) noexcept { BlockPool<sizeof(Pooled)>::give_back(p); }
};

// For std::allocate_shared.
template <typename T>
struct PoolAllocator {
  using value_type = T;

  PoolAllocator() = default;
  template <typename U>
  PoolAllocator(const PoolAllocator<U>&) noexcept {}  // NOLINT: implicit as allocators are

  T* allocate(size_t n) {
    return static_cast<T*>(n == 1 ? BlockPool<sizeof(T)>::take() : ::operator new(n * sizeof(T)));
  }
  void deallocate(T* p, size_t n) noexcept {
    n == 1 ? BlockPool<sizeof(T)>::give_back(p) : ::operator delete(p);
  }
  template <typename U>
  bool operator==(const PoolAllocator<U>&) const noexcept {
    return true;
  }
};

}  // namespace torch_tpu::runtime
