// Numbers that an operator refuses, whatever its tensors are.
#pragma once

#include <torch/library.h>

#include "eager/dispatch.h"

namespace torch_tpu::eager {

struct NumberCheck;

// The kernel of normal_, bernoulli_, huber_loss and others: refuses numbers that the CPU refuses,
// then goes on to the program, which has the numbers as operands and cannot tell.
class NumberCheckFunctor : public c10::OperatorKernel {
 public:
  NumberCheckFunctor(const OperatorInfo& info, const NumberCheck& check);
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack);

 private:
  const OperatorInfo& info_;
  const NumberCheck& check_;
  std::optional<size_t> first_, second_;  // the arguments that are its numbers
  std::optional<size_t> train_;           // the one without which nothing is drawn
};

void register_number_checks(torch::Library& aten);

}  // namespace torch_tpu::eager
