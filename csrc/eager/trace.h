// Running PyTorch code on stand-in tensors to get one program: every operator it calls is lowered
// into the program instead of being executed.
#pragma once

#include "eager/lower_operator.h"

namespace torch_tpu::eager {

// The code needs something a trace does not have (a value on the host, a real tensor, the CPU).
class TraceAborted : public std::runtime_error {
 public:
  // The trace this thread is in remembers the reason: exceptions that cross Python lose their type.
  explicit TraceAborted(const std::string& reason);
};

class Trace : public LoweringInputs {
 public:
  // `random` makes the (seed, offset) operand; asked at most once.
  explicit Trace(std::function<stablehlo::Value()> random) : random_(std::move(random)) {}

  // The trace this thread is in, or null.
  static Trace* current();

  stablehlo::Builder& builder() override { return builder_; }
  stablehlo::Value base(DeviceStorage& storage) override;
  lowering::Number number(const c10::IValue& value, bool known, bool in_list) override;
  stablehlo::Value cpu_scalar(const at::Tensor& tensor) override;
  stablehlo::Value random(int64_t count) override;
  int64_t random_count() const { return random_source_.count; }

  // Where the random numbers come from. Whoever writes a region that may run more than once, or not
  // at all, says which ones it draws.
  struct RandomSource {
    stablehlo::Value state;  // (seed, offset) of the first one; empty until the first is drawn
    int64_t count = 0;       // drawn so far
    // Whether the generator may be moved on behind the program by a number that it finds out: how
    // much its loops have drawn, which is not in `count`. It is state - first then.
    bool may_follow = false;
    stablehlo::Value first;
  };
  RandomSource& random_source() { return random_source_; }

  // Before an operator is lowered (or a host tensor copied to a tensor): a trace that works on real
  // tensors takes the arguments' storages in.
  virtual void before_call(std::span<const c10::IValue>) {}
  // From now on the storage holds another value.
  virtual void write(DeviceStorage& storage, stablehlo::Value value) { storage.set_traced(value); }

  // Why it was aborted; empty if it was not.
  const std::string& refusal() const { return refusal_; }
  void set_refusal(const std::string& reason) { refusal_ = reason; }

  // The operator whose decomposition turned out to call it again.
  const OperatorInfo* calls_itself() const { return calls_itself_; }
  void set_calls_itself(const OperatorInfo& info) { calls_itself_ = &info; }

  // Whether code took part that another process may not have: a user's own decomposition.
  bool is_private() const { return private_; }
  void set_private() { private_ = true; }

  // A tensor over a new storage that stands for `base`.
  at::Tensor placeholder(stablehlo::Value base, const at::Tensor& like);

  // Lowers one operator call and replaces the arguments by the returns.
  void call(const OperatorInfo& info, const c10::OperatorHandle& op, torch::jit::Stack& stack);

 private:
  friend class TraceGuard;
  stablehlo::Builder builder_;
  std::function<stablehlo::Value()> random_;
  RandomSource random_source_;
  const OperatorInfo* calls_itself_ = nullptr;
  bool private_ = false;
  std::string refusal_;
};

// Makes the trace current for this thread.
class TraceGuard {
 public:
  explicit TraceGuard(Trace& trace);
  ~TraceGuard();
  TraceGuard(const TraceGuard&) = delete;
  TraceGuard& operator=(const TraceGuard&) = delete;

 private:
  Trace* const previous_;
};

// Throws TraceAborted inside a trace: for code that needs real values.
void require_real_values(const char* what);

}  // namespace torch_tpu::eager
