// From a training step, run once on real tensors, to a program: every operator is lowered instead
// of being executed, autograd and optimizers do what they always do.
#pragma once

#include <memory>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "compile/step_program.h"
#include "eager/program_outputs.h"
#include "eager/trace.h"

namespace torch_tpu::compile {

// The first operator that reads a storage of before makes it a parameter of the program: its
// contents are put away, and it holds values of the program until end(). A storage that holds
// another value at the end is an output, and its parameter donated.
//
// Order of calls: begin(), the step, finish() if it can be a program, end(). All on one thread; no
// other thread may use the step's tensors in between.
class StepTrace : public eager::Trace {
 public:
  // `inputs`: the step's arguments, in which a later call may differ.
  explicit StepTrace(std::vector<at::Tensor> inputs);
  ~StepTrace() override { end(); }

  void begin();
  // The operators of this thread are executed again, until the next begin().
  void pause() { guard_.reset(); }
  // The program: `results` are new tensors at every call; `kept` are tensors that were made in the
  // step and stay, to be given new values at every call. `options` are XLA's flags for it.
  // Without `writes` the storages of before keep their contents when it runs. `gradients`: leaves
  // and the gradients they had when the step began, which may be other tensors at every call.
  using Gradients = std::vector<std::pair<at::Tensor, at::Tensor>>;
  std::shared_ptr<const StepProgram> finish(const std::vector<at::Tensor>& results,
                                            const std::vector<at::Tensor>& kept,
                                            const pjrt::Options& options, bool writes = true,
                                            const Gradients& gradients = {});
  // Storages of before hold what they held; those that were made in the step, and are not kept,
  // hold nothing.
  void end();

  // A 0-d floating-point tensor whose value comes with every call.
  at::Tensor number_input(c10::ScalarType dtype);

  // Those of the tensors that hold one element and the same value, such as an optimizer's counts
  // of steps, come to hold it in one buffer. The program has one parameter for them, and as long
  // as the step does the same with all of them one result.
  void share_equal(const std::vector<at::Tensor>& tensors);

  // The same tensors for what comes next in the step: the compiler computes all of them before
  // that.
  static std::vector<at::Tensor> barrier(const std::vector<at::Tensor>& tensors);

  // Whether the tensor's storage came into being in the step.
  bool made_here(const at::Tensor& t) const;
  // Whether an operator has used the storage, which was there before.
  bool has_taken_in(const at::Tensor& t) const;

  lowering::Platform platform() const override;
  stablehlo::Value base(eager::DeviceStorage& storage) override;
  void before_call(std::span<const c10::IValue> arguments) override;
  void write(eager::DeviceStorage& storage, stablehlo::Value value) override;
  stablehlo::Value random(int64_t count) override;

 private:
  void take_in(const at::Tensor& t);
  bool holds_value_of_this(const eager::DeviceStorage& storage) const;
  // Those of the gradients that the step has used.
  void add_gradients(const Gradients& gradients, StepProgram& out) const;
  void add_result(const at::Tensor& t, StepProgram& out,
                  std::vector<const c10::StorageImpl*>& places);
  // Notices where a backward pass begins.
  void follow_backward();
  // Accounts for code that has moved the generator.
  void follow_generator();

  const std::vector<at::Tensor> inputs_;
  eager::CallState state_;  // the inputs' storages, then those taken in; with what they held
  std::vector<uint64_t> key_;
  size_t num_inputs_ = 0;  // storages
  std::vector<c10::Storage> storages_;
  std::vector<stablehlo::Value> bases_;  // by slot; empty: not taken in
  std::unordered_set<uintptr_t> made_;
  std::unordered_set<const eager::DeviceStorage*> may_share_;
  // The slot whose parameter is a buffer's that several storages hold; and of those storages'
  // slots, the one that has the parameter.
  std::unordered_map<const runtime::DeviceBuffer*, size_t> shared_;
  std::unordered_map<size_t, size_t> same_as_;
  std::vector<at::Tensor> kept_;
  std::vector<stablehlo::ElementType> numbers_;
  eager::Program program_;
  eager::ProgramOutputs outputs_{program_, builder(), state_};

  at::Generator generator_;
  bool began_ = false;
  uint64_t seed_ = 0, first_offset_ = 0, offset_ = 0;  // where it was, and is
  stablehlo::Value random_state_;
  // The backward pass that runs: which it is, the values of before it, and of those that a part of
  // the forward that is computed again has read, what it reads instead.
  int backward_ = -1;
  int32_t last_value_ = -1, last_before_backward_ = -1;
  stablehlo::Value newest_;  // that an operator has made
  std::unordered_map<int32_t, stablehlo::Value> for_recomputing_;

  std::optional<eager::TraceGuard> guard_;
};

}  // namespace torch_tpu::compile
