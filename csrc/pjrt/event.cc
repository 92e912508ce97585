#include "pjrt/event.h"

#include <memory>
#include <utility>

#include "pjrt/api.h"
#include "pjrt/error.h"

namespace torch_tpu::pjrt {
namespace {

// What travels through the C callback's user_arg.
struct PendingCallback {
  const PJRT_Api* api;
  Event::Callback callback;
};

// Runs on the plugin's thread: nothing may leave it.
void run_callback(PJRT_Error* error, void* user_arg) noexcept {
  const std::unique_ptr<PendingCallback> pending(static_cast<PendingCallback*>(user_arg));
  try {
    if (error == nullptr) {
      pending->callback(nullptr);
    } else {
      const std::string message = take_message(pending->api, error);
      pending->callback(&message);
    }
  } catch (...) {
    // There is no one to report to; the contract of on_ready forbids it.
  }
}

}  // namespace

Event Event::adopt(const PJRT_Api* api, PJRT_Event* event) noexcept { return Event(api, event); }

Event::Event(Event&& other) noexcept
    : api_(other.api_), event_(std::exchange(other.event_, nullptr)) {}

Event& Event::operator=(Event&& other) noexcept {
  std::swap(api_, other.api_);
  std::swap(event_, other.event_);
  return *this;
}

Event::~Event() {
  if (event_ == nullptr) return;
  auto args = make_args<PJRT_Event_Destroy_Args>();
  args.event = event_;
  discard(api_, api_->PJRT_Event_Destroy(&args));
}

void Event::await() const {
  auto args = make_args<PJRT_Event_Await_Args>();
  args.event = event_;
  check(api_, api_->PJRT_Event_Await(&args), "await event");
}

bool Event::is_ready() const {
  auto args = make_args<PJRT_Event_IsReady_Args>();
  args.event = event_;
  check(api_, api_->PJRT_Event_IsReady(&args), "query event");
  return args.is_ready;
}

void Event::on_ready(Callback callback) const {
  auto pending = std::make_unique<PendingCallback>(PendingCallback{api_, std::move(callback)});
  auto args = make_args<PJRT_Event_OnReady_Args>();
  args.event = event_;
  args.callback = run_callback;
  args.user_arg = pending.get();
  check(api_, api_->PJRT_Event_OnReady(&args), "event callback");
  // run_callback owns it now (and may have freed it already).
  static_cast<void>(pending.release());
}

}  // namespace torch_tpu::pjrt
