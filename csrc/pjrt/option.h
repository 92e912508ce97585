#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>

namespace torch_tpu::pjrt {

// A named setting of a client or of a compilation. Beware that a `const char*` converts to bool:
// write std::string("...").
using Option = std::variant<std::string, int64_t, bool, float>;
using Options = std::map<std::string, Option>;

// For messages.
inline std::string to_string(const Option& option) {
  if (const auto* text = std::get_if<std::string>(&option)) return *text;
  if (const auto* yes = std::get_if<bool>(&option)) return *yes ? "true" : "false";
  if (const auto* number = std::get_if<int64_t>(&option)) return std::to_string(*number);
  return std::to_string(std::get<float>(option));
}

}  // namespace torch_tpu::pjrt
