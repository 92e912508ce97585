// Filling with a number, which has to fit the tensor's dtype.
#pragma once

#include <torch/library.h>

#include "eager/dispatch.h"

namespace torch_tpu::eager {

// The kernel of fill_, full, masked_fill and their like: refuses a number the dtype cannot hold, as
// the CPU does, then goes on to the rule, which has the number as an operand and cannot tell.
class FillingFunctor : public c10::OperatorKernel {
 public:
  explicit FillingFunctor(const OperatorInfo& info);
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack);

 private:
  const OperatorInfo& info_;
  size_t number_ = 0;            // the argument that is the number
  std::optional<size_t> dtype_;  // the argument that may give the dtype
};

// The kernel of uniform_: refuses an interval that ends before it starts, as the CPU does.
class IntervalFunctor : public c10::OperatorKernel {
 public:
  explicit IntervalFunctor(const OperatorInfo& info) : info_(info) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack);

 private:
  const OperatorInfo& info_;
};

void register_filling(torch::Library& aten);

}  // namespace torch_tpu::eager
