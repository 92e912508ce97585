#include "runtime/program_history.h"

#include <memory>
#include <utility>

namespace torch_tpu::runtime {

ProgramHistory& ProgramHistory::get() {
  // Never destroyed: threads that compile may outlive main().
  static ProgramHistory& history = *std::make_unique<ProgramHistory>().release();
  return history;
}

void ProgramHistory::add(std::string what, bool compiled, std::chrono::nanoseconds spent) {
  ProgramRecord record{std::move(what), compiled, static_cast<double>(spent.count()) * 1e-9,
                       std::chrono::system_clock::now()};
  const std::lock_guard lock(mutex_);
  records_.push_back(std::move(record));
  if (records_.size() > kMost) records_.pop_front();
}

std::vector<ProgramRecord> ProgramHistory::list() const {
  const std::lock_guard lock(mutex_);
  return {records_.begin(), records_.end()};
}

}  // namespace torch_tpu::runtime
