#include "cache/background.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <string>

#include "cache/host_hooks.h"

namespace torch_tpu::cache {

namespace {

// Signals are for the threads of the program.
class WithoutSignals {
 public:
  WithoutSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~WithoutSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

}  // namespace

Background::Background(size_t threads, size_t max_jobs, uint64_t max_bytes)
    : max_threads_(threads), max_jobs_(max_jobs), max_bytes_(max_bytes), process_(getpid()) {
  threads_.reserve(max_threads_);
}

Background::~Background() {
  if (forked()) {
    // The threads are not here to be joined.
    for (std::thread& thread : threads_) thread.detach();
    return;
  }
  stop(std::chrono::hours(24));
  for (std::thread& thread : threads_) thread.join();
}

bool Background::forked() const { return getpid() != process_; }

bool Background::submit(Job job, uint64_t bytes) {
  if (forked()) return false;
  const std::lock_guard lock(mutex_);
  if (stopped_ || waiting_.size() >= max_jobs_ ||
      (waiting_bytes_ + bytes > max_bytes_ && !waiting_.empty())) {
    return false;
  }
  if (free_threads_ <= waiting_.size() && threads_.size() < max_threads_) {
    const WithoutSignals mask;
    const size_t index = threads_.size();
    running_.emplace_back();
    try {
      threads_.emplace_back([this, index] { work(index); });
      ++free_threads_;
    } catch (const std::system_error&) {
      running_.pop_back();
      if (threads_.empty()) return false;
    }
  }
  waiting_.push_back({std::move(job), bytes});
  waiting_bytes_ += bytes;
  more_.notify_one();
  return true;
}

void Background::work(size_t thread) {
  pthread_setname_np(pthread_self(), "torch_tpu_cache");
  for (;;) {
    Job job;
    {
      std::unique_lock lock(mutex_);
      more_.wait(lock, [this] { return stopped_ || !waiting_.empty(); });
      if (stopped_) return;
      job = std::move(waiting_.front().job);
      waiting_bytes_ -= waiting_.front().bytes;
      waiting_.pop_front();
      running_[thread] = Clock::now();
      --free_threads_;
    }
    // Not catch (...): an interpreter that ends may unwind a thread that asks for its lock.
    try {
      job();
    } catch (const std::exception& error) {
      log_line(std::string("[compilation cache] a background job failed: ") + error.what());
    }
    job = nullptr;  // before it counts as done
    const std::lock_guard lock(mutex_);
    running_[thread].reset();
    ++free_threads_;
    idle_.notify_all();
  }
}

bool Background::drain(std::chrono::milliseconds limit) {
  if (forked()) return true;
  std::unique_lock lock(mutex_);
  return idle_.wait_for(lock, limit, [this] {
    return waiting_.empty() && std::none_of(running_.begin(), running_.end(),
                                            [](const auto& since) { return since.has_value(); });
  });
}

bool Background::stop(std::chrono::milliseconds limit) {
  if (forked()) return true;
  std::deque<Waiting> dropped;  // destroyed without the lock
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    dropped.swap(waiting_);
    waiting_bytes_ = 0;
    more_.notify_all();
  }
  dropped.clear();
  return drain(limit);
}

std::optional<Background::Clock::duration> Background::longest_running() {
  const Clock::time_point now = Clock::now();
  std::optional<Clock::duration> longest;
  const std::lock_guard lock(mutex_);
  for (const auto& since : running_) {
    if (since && (!longest || now - *since > *longest)) longest = now - *since;
  }
  return longest;
}

}  // namespace torch_tpu::cache
