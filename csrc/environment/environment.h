// The environment variables of this package, each read in one of a few forms.
//
// A value that makes no sense is an std::invalid_argument that names the variable, says what was
// expected and what was found; Python gets a ValueError. An empty value is as good as none.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace torch_tpu::environment {

// "" when it is not set.
std::string text(const char* variable);

// "1" or "0".
bool flag(const char* variable, bool otherwise);

int64_t integer(const char* variable, int64_t otherwise, int64_t least, int64_t most);

// A number of bytes, whole or not, with a unit if it has one: "1000", "512MiB", "2.5G", "2k".
std::optional<uint64_t> bytes(const char* variable);

// What `bytes` does, for a text from elsewhere that is called `name` in the error.
uint64_t parse_bytes(const std::string& name, const std::string& text);

// Throws "variable: expected ..., got '...'".
[[noreturn]] void refuse(std::string_view variable, std::string_view expected,
                         std::string_view got);

}  // namespace torch_tpu::environment
