// What the device has done so far: counters that users and tests read.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace torch_tpu::runtime {

struct Statistics {
  std::atomic<int64_t> ops{0};         // operators dispatched to the device
  std::atomic<int64_t> programs{0};    // programs executed
  std::atomic<int64_t> compiles{0};    // programs compiled
  std::atomic<int64_t> loads{0};       // programs loaded from the compilation cache
  std::atomic<int64_t> cache_hits{0};  // calls whose signature was known
  std::atomic<int64_t> compile_ns{0};
  std::atomic<int64_t> load_ns{0};  // in the plugin, of programs from the cache

  void count_fallback(const std::string& op);
  std::map<std::string, int64_t> fallbacks() const;
  void reset();

 private:
  mutable std::mutex mutex_;
  std::map<std::string, int64_t> fallbacks_;
};

Statistics& statistics();

}  // namespace torch_tpu::runtime
