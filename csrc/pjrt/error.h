#pragma once

#include <pjrt_c_api.h>

#include <stdexcept>
#include <string>

namespace torch_tpu::pjrt {

// A failure reported by a plugin, or by this layer about a plugin.
class Error : public std::runtime_error {
 public:
  Error(int code, const std::string& message);

  // One of PJRT_Error_Code, e.g. PJRT_Error_Code_RESOURCE_EXHAUSTED when the device is full.
  int code() const noexcept { return code_; }

 private:
  int code_;
};

// Destroys `error`, which must not be null, and throws it as an Error: "[operation] message".
[[noreturn]] void raise(const PJRT_Api* api, PJRT_Error* error, const char* operation);

// Throws the plugin's error if there is one. `operation` opens the message.
inline void check(const PJRT_Api* api, PJRT_Error* error, const char* operation = "pjrt") {
  if (error != nullptr) [[unlikely]] {
    raise(api, error, operation);
  }
}

// The plugin's message; destroys `error`. For callbacks, where nothing may be thrown.
std::string take_message(const PJRT_Api* api, PJRT_Error* error);

// Destroys `error` (may be null) unread: for destructors, which have no one to tell.
void discard(const PJRT_Api* api, PJRT_Error* error) noexcept;

}  // namespace torch_tpu::pjrt
