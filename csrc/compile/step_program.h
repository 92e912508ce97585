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

  // Why the storages that the step keeps, or the gradients it begins with, are not what run()
  // expects; empty when they are.
  std::string why_not() const;
  // Whether tensors that held one value, such as counts of steps, hold several now.
  bool has_parted() const;

  // Null when the step computes nothing.
  const runtime::CompiledProgramPtr& compiled() const { return program_->executable; }
  size_t num_donated() const;
  size_t num_outputs() const { return program_->outputs.size(); }

 private:
  friend class StepTrace;

  struct Result {
    // A view of a new storage, of an input's, of a gradient's, or a tensor that was there before
    // the step.
    enum class Kind : uint8_t { kNew, kInput, kGradient, kHeld } kind = Kind::kNew;
    uint32_t storage = 0;  // among `new_storages_`, or the input, or the gradient
    at::Tensor held;
    TensorForm form;
  };
  // A storage that is no argument's.
  struct Held {
    c10::Storage storage;
    const runtime::Layout* layout = nullptr;  // null: it is only written
    int gradient = -1;                        // whose storage it is; then `storage` is none
  };
  // The gradient that a leaf has when the step begins: another tensor at every call. Its storage
  // has this slot.
  struct Gradient {
    at::Tensor of;
    TensorForm form;
    uint32_t slot = 0;
  };

  // A storage that has held the same buffer as another one whenever the step began.
  struct Same {
    uint32_t slot = 0, as = 0;
    bool written = false;  // both get the same new one
  };

  // Null when the leaf has no gradient, or one of another form.
  static eager::DeviceStorage* storage_of(const Gradient& gradient);
  // Adds the storages behind those of the inputs; false when they are not as they were.
  bool add_held(eager::CallState& state) const;
  std::vector<at::Tensor> bind(const std::vector<at::Tensor>& inputs,
                               eager::BufferList buffers) const;

  int device_ = 0;
  std::vector<uint64_t> key_;  // the inputs' signature
  size_t num_inputs_ = 0;      // storages of theirs
  std::vector<Held> held_;     // their slots follow those of the inputs
  std::vector<Gradient> gradients_;
  std::vector<Same> same_;
  std::vector<stablehlo::ElementType> numbers_;
  std::vector<NewStorage> new_storages_;
  std::vector<Result> results_;
  eager::ProgramPtr program_;
};

// Whether the tensor's memory is the device's: it is no stand-in of PyTorch's (a fake tensor, a
// subclass) that says so.
bool has_device_storage(const at::Tensor& t);

// Fills `state` from the inputs, and gives their signature.
std::vector<uint64_t> gather_inputs(const std::vector<at::Tensor>& inputs, eager::CallState& state);

}  // namespace torch_tpu::compile
