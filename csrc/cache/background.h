// Threads that do what a program should not wait for: slow reads, writes, pruning.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "cache/fork_safe_mutex.h"

namespace torch_tpu::cache {

class Background {
 public:
  using Clock = std::chrono::steady_clock;
  // A job that is never run is destroyed: what depends on it learns so from a captured object.
  using Job = std::function<void()>;

  // At most `threads` run, started when there is something to do; at most `max_jobs` and
  // `max_bytes` wait.
  Background(size_t threads, size_t max_jobs, uint64_t max_bytes);
  ~Background();  // as stop(), without a limit

  // False when too much is waiting, after stop(), and in a forked child, which has no threads.
  // `bytes`: what the job keeps in memory.
  bool submit(Job job, uint64_t bytes = 0);
  // Waits until nothing waits or runs; false when the limit came first.
  bool drain(std::chrono::milliseconds limit);
  // Drops what waits, then waits for what runs. No job starts afterwards.
  bool stop(std::chrono::milliseconds limit);
  // How long the job that has run longest has been running.
  std::optional<Clock::duration> longest_running();
  // Whether this is a forked child of the process that made this object.
  bool forked() const;

 private:
  struct Waiting {
    Job job;
    uint64_t bytes;
  };

  void work(size_t thread);

  const size_t max_threads_, max_jobs_;
  const uint64_t max_bytes_;
  const pid_t process_;
  ForkSafeMutex mutex_;
  // The members below are guarded by mutex_.
  std::condition_variable_any more_, idle_;
  std::deque<Waiting> waiting_;
  uint64_t waiting_bytes_ = 0;
  std::vector<std::optional<Clock::time_point>> running_;  // by thread: since when
  size_t free_threads_ = 0;
  bool stopped_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace torch_tpu::cache
