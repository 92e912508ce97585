// A graph of operators as one program: flat values in, flat values out.
#pragma once

#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "compile/borrowed_values.h"
#include "compile/graph_signature.h"
#include "compile/tensor_form.h"
#include "eager/program.h"

namespace torch_tpu::compile {

// Made of the graph once, called often. The program is made when a call's signature is new: which
// layouts the storages of the inputs have, and how the inputs view them, is known only then.
// Thread-safe.
class CompiledGraph {
 public:
  using Values = std::vector<c10::IValue>;
  // Runs the graph's operators on what it is given, in the order of the inputs: tensors of a trace,
  // whole numbers and None. Gives tensors of the trace, whole numbers and None.
  using Body = std::function<Values(const Values& inputs)>;
  // Of a call: a value, or one of its inputs as it is, for which no reference is counted either.
  struct CallResult {
    c10::IValue value;
    int input = -1;  // its place
  };
  using CallResults = std::vector<CallResult>;

  // `name` is for messages and dumps. The inputs of a call are followed by `constants`.
  // `on_host[i]`: result i is to be a CPU tensor. `options` are XLA's flags for its programs.
  // `origin` says why there is the graph, for torch.tpu.explain(), where another one was not
  // enough.
  CompiledGraph(std::string name, Body body, Values constants, std::vector<bool> on_host,
                pjrt::Options options, std::string origin);

  // Runs the graph. CPU tensors among the inputs are copied to the device, and back when the graph
  // writes to them. Throws what `body` throws when the signature is new. While operators are
  // checked for NaN there is no program: they run one by one.
  CallResults operator()(BorrowedValues inputs);

  // Programs made so far, one for each signature.
  size_t num_programs() const;
  // Loads or compiles the programs made so far, and gives their texts.
  std::vector<runtime::CompiledProgramPtr> programs() const;

 private:
  struct Result {
    enum class Kind : uint8_t { kConstant, kGiven, kInput, kNew } kind = Kind::kConstant;
    c10::IValue constant;  // None or a number
    // An input as it is, a view of an input's storage, or of the storage that is made for an output
    // of the program.
    uint32_t storage = 0;  // place among the inputs, slot, or place among `storages`
    TensorForm form;
  };
  struct Specialization {
    std::vector<uint64_t> key;
    eager::ProgramPtr program;
    std::vector<NewStorage> storages;
    std::vector<Result> results;
    int random_output = -1;  // of the program: how far to move the generator on; -1: not at all
    GraphSignature signature;
  };
  using SpecializationPtr = std::shared_ptr<const Specialization>;
  // CPU tensors among the inputs, with what stands for them on the device.
  using Copies = std::vector<std::pair<at::Tensor, at::Tensor>>;

  // As a part of the program that is being traced on this thread (see step_trace.h).
  Values inside(BorrowedValues inputs);
  // Without a program.
  Values one_by_one(const Values& inputs, const Copies& copies) const;
  SpecializationPtr find(std::span<const uint64_t> key) const;
  // What makes a signature a new one.
  std::string difference_to_nearest(const Specialization& specialization) const;
  // `inputs` end with `num_constants` tensors of the graph's own.
  SpecializationPtr specialize(const Values& inputs, size_t num_constants,
                               const eager::CallState& state) const;
  CallResults bind(const Specialization& specialization, const eager::CallState& state,
                   eager::BufferList& buffers, const Values& inputs, const Copies& copies) const;

  const std::string name_;
  const Body body_;
  const std::vector<bool> on_host_;
  const pjrt::Options options_;
  const std::string origin_;
  mutable std::mutex mutex_;  // of what follows
  Values constants_;
  std::vector<SpecializationPtr> known_;  // the last one used is the first
};

}  // namespace torch_tpu::compile
