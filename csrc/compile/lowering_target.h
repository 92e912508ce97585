// Writing a step for another compiler than the process's own: to compile it ahead of time.
#pragma once

#include <optional>

#include "lowering/platform.h"

namespace torch_tpu::compile {

// What this thread's steps are written for; nullopt: for the compiler of the process's device.
std::optional<lowering::Platform> lowering_target();
// Returns the one before.
std::optional<lowering::Platform> exchange_lowering_target(
    std::optional<lowering::Platform> target);

}  // namespace torch_tpu::compile
