// When an operator runs once it has been recognised: a global default, and contexts over it.
#pragma once

#include <atomic>
#include <cstdint>

namespace torch_tpu::eager {

enum class EagerMode : uint8_t {
  kDeferNever,                   // strict: dispatched at once, asynchronously
  kDeferNeverAndLaunchBlocking,  // debug: dispatched at once, checked and waited for
  kDeferAndFuse,                 // recorded; many run as one program
};

// What debug mode does when an operator makes the first NaN.
struct NanCheck {
  enum class Action : uint8_t { kNone, kRaise, kWarn };
  Action action = Action::kNone;
  bool infinities = true;  // these count too

  bool operator==(const NanCheck&) const = default;
};

struct EagerSettings {
  EagerMode mode = EagerMode::kDeferNever;
  NanCheck nan;
};

// A context holds for its thread and for the autograd threads of a backward() called in it; where
// there is none the default holds, which begins as the environment says. Throws
// std::invalid_argument if that makes no sense.
EagerSettings current_settings();
EagerSettings default_settings();
void set_default_settings(const EagerSettings& settings);
// Contexts nest: the last one entered is the first to be left, on the same thread.
void enter_settings(const EagerSettings& settings);
void leave_settings();

namespace detail {
// The default's bits, and how many contexts there are in the process: a plain mode's number while
// there is neither a context nor a check, so that a call of an operator reads one word.
extern std::atomic<uint64_t> settings_word;
inline constexpr uint64_t kNumModes = 3;
}  // namespace detail

inline EagerMode current_mode() {
  const uint64_t word = detail::settings_word.load(std::memory_order_relaxed);
  if (word < detail::kNumModes) [[likely]] {
    return static_cast<EagerMode>(word);
  }
  return current_settings().mode;
}

// Whether operators are checked for NaN.
inline bool checks_nan() {
  return current_mode() == EagerMode::kDeferNeverAndLaunchBlocking &&
         current_settings().nan.action != NanCheck::Action::kNone;
}

}  // namespace torch_tpu::eager
