#include "runtime/compile_pool.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

namespace torch_tpu::runtime {

namespace {

class Pool {
 public:
  static Pool& get() {
    // Never destroyed: its threads may still wait when the process ends.
    static Pool& pool = *std::make_unique<Pool>().release();
    return pool;
  }

  void add(std::function<void()> task) {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    if (tasks_.size() > idle_ && threads_ < limit_) {
      ++threads_;
      std::thread([this] { run(); }).detach();
    }
    changed_.notify_all();
  }

  void finish() {
    std::unique_lock lock(mutex_);
    tasks_.clear();
    changed_.wait(lock, [this] { return idle_ == threads_; });
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      ++idle_;
      changed_.notify_all();
      changed_.wait(lock, [this] { return !tasks_.empty(); });
      --idle_;
      std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
      task = {};  // what it holds may have much to do when it goes
      lock.lock();
    }
  }

  const unsigned limit_ = std::max(1u, std::thread::hardware_concurrency());
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  unsigned threads_ = 0;
  unsigned idle_ = 0;
};

}  // namespace

void run_in_compile_pool(std::function<void()> task) { Pool::get().add(std::move(task)); }

void finish_compile_pool() { Pool::get().finish(); }

}  // namespace torch_tpu::runtime
