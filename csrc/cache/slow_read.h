// A read of a tier that may take long, done by a background thread.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "cache/program_cache.h"

namespace torch_tpu::cache {

class SlowRead {
 public:
  SlowRead();

  // Once: later calls do nothing. True when somebody had stopped waiting before.
  bool finish(const Lookup& result);

  std::optional<Lookup> result() const;
  // False when the limit came first.
  bool wait(std::chrono::milliseconds limit) const;
  // A find has answered without the result.
  void stop_waiting();
  void on_finish(std::function<void(const Lookup&)> callback);

 private:
  // A forked child has neither the thread that reads nor, for certain, a free mutex: there,
  // nothing came.
  bool forked() const;

  const pid_t process_;
  mutable std::mutex mutex_;
  mutable std::condition_variable finished_;
  // Guarded by mutex_.
  std::optional<Lookup> result_;
  bool given_up_ = false;
  std::vector<std::function<void(const Lookup&)>> callbacks_;
};

}  // namespace torch_tpu::cache
