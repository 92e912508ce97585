#include "eager/mode.h"

#include <c10/util/ThreadLocalDebugInfo.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

#include "environment/environment.h"

namespace torch_tpu::eager {

namespace {

// Of the word: the mode, the check, whether the environment is still to be read, the contexts.
constexpr uint64_t kModeMask = 0xff;
constexpr int kActionShift = 8;
constexpr uint64_t kInfinities = uint64_t{1} << 12;
constexpr uint64_t kUnread = uint64_t{1} << 15;
constexpr uint64_t kOneContext = uint64_t{1} << 16;
constexpr uint64_t kDefaultMask = kOneContext - 1;

uint64_t encode(const EagerSettings& settings) {
  const uint64_t mode = static_cast<uint64_t>(settings.mode);
  if (settings.nan.action == NanCheck::Action::kNone) return mode;
  return mode | static_cast<uint64_t>(settings.nan.action) << kActionShift |
         (settings.nan.infinities ? kInfinities : 0);
}

EagerSettings decode(uint64_t word) {
  EagerSettings out;
  out.mode = static_cast<EagerMode>(word & kModeMask);
  out.nan.action = static_cast<NanCheck::Action>(word >> kActionShift & 0xf);
  out.nan.infinities = out.nan.action == NanCheck::Action::kNone || (word & kInfinities) != 0;
  return out;
}

// PyTorch hands these on to the threads that work for this one, autograd's among them.
constexpr std::string_view kSlotName = "torch_tpu's eager mode";
constexpr c10::DebugInfoKind kSlot(&kSlotName);

struct ModeContext : c10::DebugInfoBase {
  explicit ModeContext(const EagerSettings& settings) : settings(settings) {}
  const EagerSettings settings;
};

EagerMode mode_from_environment() {
  const bool blocking = environment::flag("TORCH_TPU_LAUNCH_BLOCKING", false);
  const bool deferred = environment::flag("TORCH_TPU_DEFER_AND_FUSE", false);
  if (blocking && deferred) {
    throw std::invalid_argument(
        "TORCH_TPU_LAUNCH_BLOCKING and TORCH_TPU_DEFER_AND_FUSE: expected at most one of them to "
        "be 1, got both; they are two eager modes");
  }
  if (blocking) return EagerMode::kDeferNeverAndLaunchBlocking;
  return deferred ? EagerMode::kDeferAndFuse : EagerMode::kDeferNever;
}

// Puts the default's bits into the word, if they are (`only_unread`) still to be read.
void replace_default(uint64_t bits, bool only_unread) {
  std::atomic<uint64_t>& word = detail::settings_word;
  uint64_t before = word.load();
  do {
    if (only_unread && (before & kUnread) == 0) return;
  } while (!word.compare_exchange_weak(before, (before & ~kDefaultMask) | bits));
}

}  // namespace

namespace detail {
std::atomic<uint64_t> settings_word{kUnread};
}  // namespace detail

EagerSettings default_settings() {
  if ((detail::settings_word.load() & kUnread) != 0) {
    replace_default(encode({mode_from_environment(), {}}), true);
  }
  return decode(detail::settings_word.load() & kDefaultMask);
}

void set_default_settings(const EagerSettings& settings) {
  replace_default(encode(settings), false);
}

EagerSettings current_settings() {
  if (detail::settings_word.load() >= kOneContext) {
    if (const auto* context =
            static_cast<const ModeContext*>(c10::ThreadLocalDebugInfo::get(kSlot))) {
      return context->settings;
    }
  }
  return default_settings();
}

void enter_settings(const EagerSettings& settings) {
  c10::ThreadLocalDebugInfo::_push(kSlot, std::make_shared<ModeContext>(settings));
  detail::settings_word.fetch_add(kOneContext);
}

void leave_settings() {
  c10::ThreadLocalDebugInfo::_pop(kSlot);
  detail::settings_word.fetch_sub(kOneContext);
}

}  // namespace torch_tpu::eager
