// A trace that becomes a program: stand-ins for the tensors of a gathered call, of which those that
// are used are the program's parameters.
#pragma once

#include "eager/program.h"
#include "eager/trace.h"

namespace torch_tpu::eager {

class ProgramTrace : public Trace {
 public:
  // The parameters are added to `program`, as they are needed.
  ProgramTrace(Program& program, const CallState& state, PrecisionCode precision);

  // What takes the place of an argument: a tensor of a new storage, in which all tensors that share
  // a storage do so again; lists of them; every other value as it is.
  c10::IValue stand_in(const c10::IValue& value);

  // The slot of the storage that a tensor of the trace stands for, or -1.
  int slot_of(const at::Tensor& tensor) const;
  // The storages whose stand-ins hold another value now, with it.
  std::vector<std::pair<DeviceStorage*, stablehlo::Value>> writes() const;

 private:
  at::Tensor stand_in(const at::Tensor& t);

  Program& program_;
  const CallState& state_;
  std::vector<c10::Storage> stand_ins_;  // by slot
  std::vector<stablehlo::Value> bases_;  // what they began with
};

// A tensor like `like` (its sizes, strides, offset, dtype and lazy bits) over this storage.
at::Tensor over_storage(const c10::Storage& storage, const at::Tensor& like);

}  // namespace torch_tpu::eager
