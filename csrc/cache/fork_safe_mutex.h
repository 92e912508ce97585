// A mutex that a forked child finds unlocked, with what it guards in a consistent state.
//
// Every fork takes all of them first and gives them back in both processes. That cannot
// deadlock, for one rule holds everywhere in cache/: a thread that holds one of these takes no
// other lock, creates or destroys none of these, and calls nothing foreign (hooks, the log).
// Lock order is thereby settled: no two locks meet.
#pragma once

#include <mutex>

namespace torch_tpu::cache {

class ForkSafeMutex {
 public:
  ForkSafeMutex();
  ~ForkSafeMutex();
  ForkSafeMutex(const ForkSafeMutex&) = delete;
  ForkSafeMutex& operator=(const ForkSafeMutex&) = delete;

  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }
  bool try_lock() { return mutex_.try_lock(); }

 private:
  std::mutex mutex_;
};

}  // namespace torch_tpu::cache
