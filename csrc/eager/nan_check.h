// Which operator makes the first NaN (or infinity).
#pragma once

#include <ATen/core/ivalue.h>

#include <span>

#include "eager/mode.h"
#include "eager/operator_info.h"

namespace torch_tpu::eager {

// Looks at a call's inputs and results, on the host.
class NanWatch {
 public:
  // Before the call: an input that is about to be overwritten is looked at here, the others when it
  // matters. `arguments` must outlive the watch.
  NanWatch(const OperatorInfo& info, std::span<const c10::IValue> arguments, NanCheck wanted);
  // After it: raises or warns if a result is not finite although every input was.
  void look_at(std::span<const c10::IValue> returns) const;

 private:
  bool is_input(size_t i) const;
  bool inputs_were_finite() const;
  [[nodiscard]] std::string describe_inputs() const;

  const OperatorInfo& info_;
  const std::span<const c10::IValue> arguments_;
  const NanCheck wanted_;
  std::vector<bool> looked_at_;
  bool finite_before_ = true;
};

}  // namespace torch_tpu::eager
