#pragma once

#include <pjrt_c_api.h>

#include <cstddef>

namespace torch_tpu::pjrt {

// A zeroed argument struct with its size filled in. The size is how a plugin built against another
// minor version of the API knows which fields exist on our side.
template <typename Args>
constexpr Args make_args() {
  Args args{};
  args.struct_size = sizeof(Args);
  return args;
}

// Whether the plugin has the function at all: an older plugin's table ends earlier than our
// header's, and a plugin may leave entries empty.
template <typename Function>
bool has_function(const PJRT_Api* api, Function* PJRT_Api::* member) {
  const auto begin = reinterpret_cast<const std::byte*>(api);
  const auto field = reinterpret_cast<const std::byte*>(&(api->*member));
  const size_t end = static_cast<size_t>(field - begin) + sizeof(Function*);
  return end <= api->struct_size && api->*member != nullptr;
}

[[noreturn]] void raise_missing_function(const PJRT_Api* api, const char* name);

// The function, or an Error that says the plugin is too old for it. Functions this layer cannot do
// without are checked once when the plugin is loaded and called directly afterwards.
template <typename Function>
Function* require_function(const PJRT_Api* api, Function* PJRT_Api::* member, const char* name) {
  if (!has_function(api, member)) raise_missing_function(api, name);
  return api->*member;
}

}  // namespace torch_tpu::pjrt
