#include "pjrt/error.h"

#include "pjrt/api.h"

namespace torch_tpu::pjrt {

Error::Error(int code, const std::string& message) : std::runtime_error(message), code_(code) {}

std::string take_message(const PJRT_Api* api, PJRT_Error* error) {
  auto args = make_args<PJRT_Error_Message_Args>();
  args.error = error;
  api->PJRT_Error_Message(&args);
  std::string message(args.message, args.message_size);
  discard(api, error);
  return message;
}

void discard(const PJRT_Api* api, PJRT_Error* error) noexcept {
  if (error == nullptr) return;
  auto args = make_args<PJRT_Error_Destroy_Args>();
  args.error = error;
  api->PJRT_Error_Destroy(&args);
}

void raise(const PJRT_Api* api, PJRT_Error* error, const char* operation) {
  auto args = make_args<PJRT_Error_GetCode_Args>();
  args.error = error;
  args.code = PJRT_Error_Code_UNKNOWN;
  discard(api, api->PJRT_Error_GetCode(&args));
  throw Error(args.code, std::string("[") + operation + "] " + take_message(api, error));
}

void raise_missing_function(const PJRT_Api* api, const char* name) {
  throw Error(PJRT_Error_Code_UNIMPLEMENTED,
              std::string("[") + name + "] the loaded PJRT plugin (API version " +
                  std::to_string(api->pjrt_api_version.major_version) + "." +
                  std::to_string(api->pjrt_api_version.minor_version) +
                  ") does not have this function; use a newer plugin");
}

}  // namespace torch_tpu::pjrt
