// Which programs this process compiled or loaded: what a user asks when there are too many.
#pragma once

#include <chrono>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

namespace torch_tpu::runtime {

struct ProgramRecord {
  std::string what;  // the operation and its signature
  bool compiled;     // and not loaded from the compilation cache
  double seconds;    // that took
  std::chrono::system_clock::time_point when;
};

// Thread-safe.
class ProgramHistory {
 public:
  static ProgramHistory& get();

  void add(std::string what, bool compiled, std::chrono::nanoseconds spent);
  // The latest ones, in order.
  std::vector<ProgramRecord> list() const;

 private:
  static constexpr size_t kMost = 10'000;

  mutable std::mutex mutex_;
  std::deque<ProgramRecord> records_;
};

}  // namespace torch_tpu::runtime
