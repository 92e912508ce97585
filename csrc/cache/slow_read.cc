#include "cache/slow_read.h"

#include <unistd.h>

#include "cache/host_hooks.h"

namespace torch_tpu::cache {

SlowRead::SlowRead() : process_(getpid()) {}

bool SlowRead::forked() const { return process_ != getpid(); }

bool SlowRead::finish(const Lookup& result) {
  if (forked()) return false;
  std::vector<std::function<void(const Lookup&)>> callbacks;
  bool given_up;
  {
    const std::lock_guard lock(mutex_);
    if (result_) return false;
    result_ = result;
    given_up = given_up_;
    callbacks.swap(callbacks_);
  }
  finished_.notify_all();
  for (const auto& callback : callbacks) {
    try {
      callback(result);
    } catch (const std::exception& error) {
      log_line(std::string("[compilation cache] a callback failed: ") + error.what());
    }
  }
  return given_up;
}

std::optional<Lookup> SlowRead::result() const {
  if (forked()) return std::nullopt;
  const std::lock_guard lock(mutex_);
  return result_;
}

bool SlowRead::wait(std::chrono::milliseconds limit) const {
  if (forked()) return false;
  if (result()) return true;
  bool finished = false;
  blocking([&] {
    std::unique_lock lock(mutex_);
    finished = finished_.wait_for(lock, limit, [this] { return result_.has_value(); });
  });
  return finished;
}

void SlowRead::stop_waiting() {
  if (forked()) return;
  const std::lock_guard lock(mutex_);
  given_up_ = true;
}

void SlowRead::on_finish(std::function<void(const Lookup&)> callback) {
  if (forked()) return callback(Lookup{std::nullopt, EntryProblem::kSlow});
  {
    const std::lock_guard lock(mutex_);
    if (!result_) {
      callbacks_.push_back(std::move(callback));
      return;
    }
  }
  callback(*result_);  // no longer changes
}

std::optional<Hit> Claim::late_hit() const {
  const std::optional<Lookup> result = read_ ? read_->result() : std::nullopt;
  return result ? result->hit : std::nullopt;
}

std::optional<Hit> Claim::wait_late_hit(std::chrono::milliseconds limit) const {
  if (!read_) return std::nullopt;
  read_->wait(limit);
  return late_hit();
}

void Claim::on_read(std::function<void(const Lookup&)> callback) const {
  if (!read_) return callback(Lookup{std::nullopt, EntryProblem::kAbsent});
  read_->on_finish(std::move(callback));
}

}  // namespace torch_tpu::cache
