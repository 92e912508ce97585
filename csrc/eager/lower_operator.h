// From an operator call on tensors to values of a program: PyTorch's meta kernels say what the
// results are, the rule says how they are computed, and writes go through the tensors' views.
#pragma once

#include <ATen/core/stack.h>

#include <functional>
#include <span>

#include "eager/call_return.h"
#include "eager/device_storage.h"
#include "eager/operator_info.h"
#include "lowering/platform.h"

namespace torch_tpu::eager {

// Where a lowering gets its inputs from.
class LoweringInputs {
 public:
  virtual ~LoweringInputs() = default;
  virtual stablehlo::Builder& builder() = 0;
  // What a filled storage holds before the call.
  virtual stablehlo::Value base(DeviceStorage& storage) = 0;
  // A number argument; `known`: the rule wants to know it while lowering. Called in the order of
  // the arguments.
  virtual lowering::Number number(const c10::IValue& value, bool known, bool in_list) = 0;
  // A 0-d CPU tensor as a 0-d value of its own dtype.
  virtual stablehlo::Value cpu_scalar(const at::Tensor& tensor) = 0;
  // Where the view that is the call's `tensor`-th tpu tensor starts, if that is an operand.
  struct Moving {
    lowering::BaseBox box;
    stablehlo::Values start;
  };
  virtual std::optional<Moving> moving([[maybe_unused]] uint32_t tensor) { return std::nullopt; }
  // The compiler that the program is written for; the process's own unless told otherwise.
  virtual lowering::Platform platform() const;
  // (seed, offset) for `count` more 32-bit numbers.
  virtual stablehlo::Value random(int64_t count) = 0;
};

struct LoweredCall {
  struct Fresh {
    stablehlo::Value value;  // in the order of the memory; empty: an undefined tensor
    c10::ScalarType dtype = c10::ScalarType::Undefined;
    std::vector<int64_t> sizes, strides;
  };
  std::vector<Fresh> fresh;
  std::vector<CallReturn> returns;
  // The storages that change, with their new base.
  std::vector<std::pair<DeviceStorage*, stablehlo::Value>> writes;
};

// Thrown after out= tensors were resized: gather the call again.
struct GatherAgain {};

// What the results are, by PyTorch's meta kernel: nullopt when there is none. Wrong arguments throw
// PyTorch's own errors; out= tensors of another size are resized, which throws GatherAgain.
std::optional<torch::jit::Stack> check_call(const OperatorInfo& info, const c10::OperatorHandle& op,
                                            std::span<const c10::IValue> arguments);

// Throws lowering::Unsupported when there is no rule or it does not cover the call.
LoweredCall lower_operator(const OperatorInfo& info, const c10::OperatorHandle& op,
                           std::span<const c10::IValue> arguments, LoweringInputs& inputs);

// `value` (logical shape) as the new base of `tensor`'s storage: the whole of it, or the old base
// with the view's part replaced. `base` is asked only when the old base matters.
stablehlo::Value write_tensor(const at::Tensor& tensor, stablehlo::Value value,
                              const std::function<stablehlo::Value()>& base);
// The base of an unfilled storage that is about to be written in part.
stablehlo::Value unfilled_base(stablehlo::Builder& builder, const at::Tensor& tensor);

}  // namespace torch_tpu::eager
