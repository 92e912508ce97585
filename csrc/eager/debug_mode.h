// Debug mode: every operator is checked before it runs and waited for afterwards.
#pragma once

#include <ATen/core/stack.h>

#include <functional>

#include "eager/operator_info.h"

namespace torch_tpu::eager {

// Runs the call by `run`, which replaces the stack's arguments by the returns.
void debug_call(const OperatorInfo& info, const c10::OperatorHandle& op, torch::jit::Stack& stack,
                const std::function<void()>& run);

// Waits for the tensor's value, where the mode is debug.
void wait_if_debugging(const at::Tensor& tensor);

}  // namespace torch_tpu::eager
