#include "runtime/repetition.h"

#include "runtime/hash.h"

namespace torch_tpu::runtime {

bool RepetitionDetector::window_equal(size_t a, size_t b) const {
  for (size_t k = 0; k < kWindow; ++k) {
    if (at(a - k) != at(b - k)) return false;
  }
  return true;
}

// The window that ends now may have come before. The nearest place counts: a smaller period takes
// over from a larger one.
void RepetitionDetector::look_for_period() {
  const size_t now = count_ - 1;
  uint64_t hash = 0;
  for (size_t k = 0; k < kWindow; ++k) hash = mix(hash, at(now - k));
  if (last_.size() > 4 * kMaxPeriod) last_.clear();
  const auto [it, is_new] = last_.try_emplace(hash, now);
  if (is_new) return;
  const size_t period = now - it->second;
  const bool known = it->second + 1 >= kWindow && window_equal(now, it->second);
  it->second = now;
  if (!known || period > kMaxPeriod || period == period_) return;
  if (period_ != 0 && period > period_) return;
  period_ = period;
  matched_ = kWindow;
}

bool RepetitionDetector::add(uint64_t operation) {
  history_[count_ % history_.size()] = operation;
  ++count_;
  if (period_ != 0) {
    if (at(count_ - 1) == at(count_ - 1 - period_)) {
      ++matched_;
    } else {
      period_ = matched_ = 0;
    }
  }
  if (count_ >= kWindow) look_for_period();
  if (period_ == 0) return false;
  const size_t piece = period_ * ((kMinPiece + period_ - 1) / period_);
  return matched_ >= piece && matched_ % piece == 0;
}

void RepetitionDetector::reset() {
  count_ = period_ = matched_ = 0;
  last_.clear();
}

}  // namespace torch_tpu::runtime
