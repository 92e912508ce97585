// What a call gives back, worked out while lowering and made anew at every run.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <utility>
#include <vector>

namespace torch_tpu::eager {

struct CallReturn {
  enum class Kind : uint8_t { kArgument, kTensor, kTensorList, kConstant } kind = Kind::kTensor;
  size_t index = 0;  // argument, or first new tensor
  size_t count = 1;  // new tensors in a list
  c10::IValue constant = {};
};

// Replaces the call's arguments on the stack by its returns; `new_tensor(i)` makes the i-th new
// tensor and is asked once for each.
template <typename NewTensor>
void push_returns(const std::vector<CallReturn>& returns, NewTensor&& new_tensor,
                  size_t num_arguments, torch::jit::Stack& stack) {
  c10::SmallVector<c10::IValue, 4> values;
  for (const CallReturn& r : returns) {
    switch (r.kind) {
      case CallReturn::Kind::kArgument:
        values.push_back(stack[stack.size() - num_arguments + r.index]);
        break;
      case CallReturn::Kind::kTensor:
        values.emplace_back(new_tensor(r.index));
        break;
      case CallReturn::Kind::kTensorList: {
        std::vector<at::Tensor> list;
        for (size_t i = 0; i < r.count; ++i) list.push_back(new_tensor(r.index + i));
        values.emplace_back(std::move(list));
        break;
      }
      case CallReturn::Kind::kConstant:
        values.push_back(r.constant);
        break;
    }
  }
  torch::jit::drop(stack, num_arguments);
  for (c10::IValue& v : values) stack.push_back(std::move(v));
}

}  // namespace torch_tpu::eager
