#pragma once

#include <atomic>
#include <thread>

namespace torch_tpu::runtime {

// For sections of a few instructions on the hot path, where an uncontended mutex already shows.
class SpinLock {
 public:
  void lock() noexcept {
    while (flag_.test_and_set(std::memory_order_acquire)) std::this_thread::yield();
  }
  void unlock() noexcept { flag_.clear(std::memory_order_release); }

 private:
  std::atomic_flag flag_;
};

}  // namespace torch_tpu::runtime
