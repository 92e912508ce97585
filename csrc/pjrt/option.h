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

}  // namespace torch_tpu::pjrt
