// Filling with a number, which has to fit the tensor's dtype.
#pragma once

#include <torch/library.h>

#include "eager/dispatch.h"

namespace torch_tpu::eager {

// The kernel of fill_, full, clamp and their like: refuses numbers the dtype cannot hold, as the
// CPU does, then goes on to the rule, which has the number as an operand and cannot tell.
class FillingFunctor : public c10::OperatorKernel {
 public:
  explicit FillingFunctor(const OperatorInfo& info);
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack);

 private:
  const OperatorInfo& info_;
  const bool promotes_;          // the numbers take part in the dtype of the result
  std::vector<size_t> numbers_;  // the arguments that are numbers
  std::optional<size_t> dtype_;  // the argument that may give the dtype
};

void register_filling(torch::Library& aten);

}  // namespace torch_tpu::eager
