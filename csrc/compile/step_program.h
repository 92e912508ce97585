// A training step as one program: parameters and optimizer state are donated to it and get their
// new values from it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "compile/tensor_form.h"
#include "eager/program.h"

namespace torch_tpu::compile {

// Made by StepTrace::finish(). Keeps the storages that the step reads and writes.
class StepProgram {
 public:
  // Runs the step: `inputs` are its arguments, `numbers` the values of the trace's number operands.
  // The storages that the step writes hold their new values afterwards. nullopt when the arguments
  // or the storages do not look as they did when the step was traced.
  // `new_because`: why there is the program, at its first run.
  std::optional<std::vector<at::Tensor>> run(const std::vector<at::Tensor>& inputs,
                                             const std::vector<double>& numbers,
                                             const std::optional<std::string>& new_because) const;

  // Why the storages that the step keeps are not what run() expects; empty when they are.
  std::string why_not() const;

  // Null when the step computes nothing.
  const runtime::CompiledProgramPtr& compiled() const { return program_->executable; }
  size_t num_donated() const;
  size_t num_outputs() const { return program_->outputs.size(); }

 private:
  friend class StepTrace;

  struct Result {
    // A view of a new storage, of an input's, or a tensor that was there before the step.
    enum class Kind : uint8_t { kNew, kInput, kHeld } kind = Kind::kNew;
    uint32_t storage = 0;  // among `new_storages_`, or the input
    at::Tensor held;
    TensorForm form;
  };
  // A storage that is no argument's.
  struct Held {
    c10::Storage storage;
    const runtime::Layout* layout = nullptr;  // null: it is only written
  };

  // A storage that has held the same buffer as another one whenever the step began.
  struct Same {
    uint32_t slot = 0, as = 0;
    bool written = false;  // both get the same new one
  };

  std::vector<at::Tensor> bind(const std::vector<at::Tensor>& inputs,
                               eager::BufferList buffers) const;

  int device_ = 0;
  std::vector<uint64_t> key_;  // the inputs' signature
  size_t num_inputs_ = 0;      // storages of theirs
  std::vector<Held> held_;     // their slots follow those of the inputs
  std::vector<Same> same_;
  std::vector<stablehlo::ElementType> numbers_;
  std::vector<NewStorage> new_storages_;
  std::vector<Result> results_;
  eager::ProgramPtr program_;
};

// Fills `state` from the inputs, and gives their signature.
std::vector<uint64_t> gather_inputs(const std::vector<at::Tensor>& inputs, eager::CallState& state);

}  // namespace torch_tpu::compile
