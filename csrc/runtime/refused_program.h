// Programs that a compiler refused, kept to be looked at.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace torch_tpu::runtime {

// Writes the program to the temporary directory, where the ten latest of all processes are kept.
// Its path; nullopt where it cannot be written. Thread-safe.
std::optional<std::string> keep_refused_program(std::string_view program);

}  // namespace torch_tpu::runtime
