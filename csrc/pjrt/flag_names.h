#pragma once

#include <functional>
#include <string>
#include <vector>

namespace torch_tpu::pjrt {

// XLA's flags whose names are like `name`, nearest first, for messages about one that the compiler
// does not know; empty when nothing is near. PJRT has no list of flags: the names are looked for in
// the plugin's file, which takes a moment, and `is_known` says of a name whether it is a flag.
std::vector<std::string> flags_like(const std::string& plugin_path, const std::string& name,
                                    const std::function<bool(const std::string&)>& is_known);

// What follows a compiler's refusal of `name`: "; did you mean xla_a or xla_b?", or nothing. A flag
// that is known was refused for its value. `refusal` compiles with a flag and gives the compiler's
// words, empty when there are none.
std::string flag_suggestion(
    const std::string& plugin_path, const std::string& name,
    const std::function<std::string(const std::string& name, const std::string& value)>& refusal);

}  // namespace torch_tpu::pjrt
