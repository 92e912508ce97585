// What PyTorch's CPU kernels say about values (an index out of range, a divisor of zero), which
// other modes do not look at since they would have to wait for them.
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/library.h>

#include <span>

#include "eager/operator_info.h"

namespace torch_tpu::eager {

// If a value of the call looks wrong, runs it on the CPU and throws what that throws.
void check_values(const OperatorInfo& info, const c10::OperatorHandle& op,
                  std::span<const c10::IValue> arguments);

// one_hot: PyTorch looks at its classes on the CPU only, before it becomes other operators.
void register_value_checks(torch::Library& aten);

}  // namespace torch_tpu::eager
