#pragma once

#include <pjrt_c_api.h>

#include <functional>
#include <string>

namespace torch_tpu::pjrt {

// The completion of asynchronous work. Move-only; dropping it does not cancel the work.
class Event {
 public:
  // Called with null on success, else with the plugin's message.
  using Callback = std::function<void(const std::string* error_message_or_null)>;

  Event() noexcept = default;
  static Event adopt(const PJRT_Api* api, PJRT_Event* event) noexcept;
  Event(Event&& other) noexcept;
  Event& operator=(Event&& other) noexcept;
  ~Event();

  explicit operator bool() const noexcept { return event_ != nullptr; }

  // Blocks until the work is done; throws Error if it failed.
  void await() const;
  // True once the work has ended, failed work included.
  bool is_ready() const;
  // Runs `callback` when the work has ended: on a thread of the plugin, or at once on this thread
  // if it has ended already. The callback must not throw (an escaping exception is dropped), and
  // should not block: plugins run it on the threads that do the device's work.
  void on_ready(Callback callback) const;

 private:
  Event(const PJRT_Api* api, PJRT_Event* event) noexcept : api_(api), event_(event) {}

  const PJRT_Api* api_ = nullptr;
  PJRT_Event* event_ = nullptr;
};

}  // namespace torch_tpu::pjrt
