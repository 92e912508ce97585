#include "runtime/statistics.h"

namespace torch_tpu::runtime {

Statistics& statistics() {
  static Statistics s;
  return s;
}

void Statistics::count_fallback(const std::string& op) {
  const std::lock_guard lock(mutex_);
  ++fallbacks_[op];
}

std::map<std::string, int64_t> Statistics::fallbacks() const {
  const std::lock_guard lock(mutex_);
  return fallbacks_;
}

void Statistics::reset() {
  for (std::atomic<int64_t>* c :
       {&ops, &programs, &compiles, &loads, &cache_hits, &compile_ns, &load_ns}) {
    c->store(0);
  }
  const std::lock_guard lock(mutex_);
  fallbacks_.clear();
}

}  // namespace torch_tpu::runtime
