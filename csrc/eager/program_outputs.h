// The outputs of a program under construction: new arrays, and new values of storages.
#pragma once

#include "eager/program.h"

namespace torch_tpu::eager {

class ProgramOutputs {
 public:
  // The outputs are added to `program`, whose parameters are `builder`'s, and whose slots are those
  // of `state`.
  ProgramOutputs(Program& program, stablehlo::Builder& builder, const CallState& state) noexcept
      : program_(program), builder_(builder), state_(state) {}

  // A new output's place; for the storage in `slot`, unless that is -1.
  int add(stablehlo::Value value, int slot = -1);
  // The new value of the storage in `slot`. The memory of the old one may become its own.
  void write(int slot, stablehlo::Value value);

  // What the program returns, in the order of its outputs.
  const stablehlo::Values& values() const { return values_; }

 private:
  Program& program_;
  stablehlo::Builder& builder_;
  const CallState& state_;
  stablehlo::Values values_;
};

}  // namespace torch_tpu::eager
