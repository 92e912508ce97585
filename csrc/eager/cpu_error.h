// A wrong call's error, as PyTorch's CPU kernels word it.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <span>

namespace torch_tpu::eager {

// What the CPU gets to see in the place of device tensors.
enum class StandIn {
  kZeros,       // tensors of the same shapes, full of zeros
  kSameValues,  // copies of the values
};

// A call was refused, by a meta kernel or a rule, whose messages are not always those of the CPU.
// Runs it on the CPU and throws what comes of that; returns true when the CPU accepts the call, and
// false when the zeros would be too large to try.
bool throw_as_cpu_does(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments,
                       StandIn stand_in = StandIn::kZeros);

}  // namespace torch_tpu::eager
