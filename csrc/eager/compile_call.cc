#include "eager/compile_call.h"

#include <ATen/native/Resize.h>

#include <algorithm>
#include <mutex>
#include <set>

#include "eager/compile_program.h"
#include "eager/dispatch.h"
#include "eager/moving_views.h"
#include "eager/program_outputs.h"
#include "eager/program_record.h"
#include "eager/program_trace.h"
#include "eager/scalar_types.h"
#include "runtime/compile_service.h"

namespace torch_tpu::eager {

namespace sh = stablehlo;
using lowering::Unsupported;

namespace {

Decomposition& decomposition() {
  static Decomposition d;
  return d;
}

// What a rule does not cover, where that makes the call slower: said once per operator.
void warn_not_covered(const OperatorInfo& info, const std::string& reason) {
  static std::mutex mutex;
  static std::set<const OperatorInfo*> said;
  if (reason.empty() || fallback_policy() != FallbackPolicy::kWarn) return;
  {
    const std::lock_guard lock(mutex);
    if (!said.insert(&info).second) return;
  }
  TORCH_WARN(info.qualified(), " cannot be one program here, which is slower: ", reason);
}

ProgramPtr program_of_kind(Program::Kind kind) {
  Program program;
  program.kind = kind;
  return std::make_shared<const Program>(std::move(program));
}

// The operators whose decompositions this thread is tracing, innermost last.
std::vector<const OperatorInfo*>& decomposing() {
  thread_local std::vector<const OperatorInfo*> operators;
  return operators;
}

// PyTorch's own code resolves some decompositions that call their operator in another way.
bool decompose_in_trace(const OperatorInfo& info, const c10::OperatorHandle& op,
                        torch::jit::Stack& stack) {
  std::vector<const OperatorInfo*>& active = decomposing();
  if (std::find(active.begin(), active.end(), &info) != active.end()) {
    Trace::current()->set_calls_itself(info);
    throw TraceAborted(info.qualified() + ": the decomposition calls the operator itself");
  }
  active.push_back(&info);
  struct Leave {
    std::vector<const OperatorInfo*>& active;
    ~Leave() { active.pop_back(); }
  } leave{active};
  return decompose(op, stack);
}

// The inputs of a program: a parameter per storage that is read, and one per number operand.
class ProgramInputs : public LoweringInputs {
 public:
  ProgramInputs(const CallState& state, bool all_known, sh::Builder& builder, Program& program)
      : state_(state), all_known_(all_known), builder_(builder), program_(program) {}

  sh::Builder& builder() override { return builder_; }

  sh::Value base(DeviceStorage& storage) override {
    const int slot = state_.find_slot(storage);
    TORCH_INTERNAL_ASSERT(slot >= 0);
    const auto it = bases_.find(slot);
    if (it != bases_.end()) return it->second;
    const sh::Value value =
        parameter(Program::Parameter::Kind::kStorage, static_cast<uint32_t>(slot),
                  state_.contents[static_cast<size_t>(slot)].layout->type);
    bases_.emplace(slot, value);
    return value;
  }

  lowering::Number number(const c10::IValue& value, bool known, bool in_list) override {
    if (known || all_known_ || (!in_list && is_special_number(value))) {
      return known_number(value);
    }
    lowering::Number n;
    n.type = number_operand(value).type;
    n.operand = parameter(Program::Parameter::Kind::kNumber, next_number_++, {n.type, {}});
    return n;
  }

  sh::Value cpu_scalar(const at::Tensor& tensor) override {
    const NumberOperand operand = number_operand(tensor);
    if (all_known_) return sh::constant_bytes(builder_, operand.bits.data(), {operand.type, {}});
    return parameter(Program::Parameter::Kind::kNumber, next_number_++, {operand.type, {}});
  }

  std::optional<Moving> moving(uint32_t tensor) override {
    for (const CallState::MovingView& view : state_.moving) {
      if (view.tensor != tensor) continue;
      const sh::ElementType type = start_type(view.box);
      Moving out{view.box, {}};
      uint32_t number = view.first_number;
      for (size_t k = 0; k < view.box.rank; ++k) {
        out.start.push_back(view.box.moves(k) ? start_operand(number++, type)
                                              : sh::scalar(builder_, type, 0));
      }
      return out;
    }
    return std::nullopt;
  }

  sh::Value random(int64_t count) override {
    if (!random_) {
      random_ = parameter(Program::Parameter::Kind::kRandom, 0, {sh::ElementType::kU64, {2}});
    }
    const int64_t steps = program_.random_count / 4;
    program_.random_count += (count + 3) / 4 * 4;
    if (steps == 0) return random_;
    const std::array<int64_t, 2> words{0, steps};
    return sh::add(random_, sh::constant(builder_, words, sh::ElementType::kU64));
  }

 private:
  sh::Value start_operand(uint32_t number, sh::ElementType type) {
    const auto it = starts_.find(number);
    if (it != starts_.end()) return it->second;
    const sh::Value value = parameter(Program::Parameter::Kind::kNumber, number, {type, {}});
    starts_.emplace(number, value);
    return value;
  }

  sh::Value parameter(Program::Parameter::Kind kind, uint32_t index, const sh::TensorType& type) {
    program_.parameters.push_back({kind, false, index});
    return builder_.parameter(type);
  }

  const CallState& state_;
  const bool all_known_;
  sh::Builder& builder_;
  Program& program_;
  std::map<int, sh::Value> bases_;
  std::map<uint32_t, sh::Value> starts_;  // of moving views, by their place in state_.numbers
  uint32_t next_number_ = 0;
  sh::Value random_;
};

std::string describe(const OperatorInfo& info, std::span<const c10::IValue> arguments) {
  std::string out = info.qualified() + "(";
  const auto add = [&](const at::Tensor& t) {
    if (!t.defined()) return;
    if (out.back() != '(') out += ", ";
    out += std::string(c10::toString(t.scalar_type())) + sh::to_string(t.sizes());
  };
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].isTensor()) add(arguments[i].toTensor());
    if (arguments[i].isTensorList()) {
      for (const at::Tensor& t : arguments[i].toTensorVector()) add(t);
    }
  }
  return out + ")";
}

// Turns what was lowered into a program: results, donation, returns; compiles it.
ProgramPtr finish(Program program, sh::Builder& builder, PrecisionCode precision,
                  const LoweredCall& lowered, const CallState& state, const std::string& what) {
  ProgramOutputs outputs(program, builder, state);
  for (const LoweredCall::Fresh& f : lowered.fresh) {
    Program::NewTensor tensor;
    if (f.value) {
      tensor.output = outputs.add(f.value);
      tensor.dtype = f.dtype;
      tensor.sizes = f.sizes;
      tensor.strides = f.strides;
      tensor.nbytes = static_cast<size_t>(f.value.numel()) * c10::elementSize(f.dtype);
    }
    program.tensors.push_back(std::move(tensor));
  }
  for (const auto& [storage, value] : lowered.writes) {
    outputs.write(state.find_slot(*storage), value);
  }
  program.returns = lowered.returns;
  if (builder.float32_products_asked()) program.precision = precision;
  if (!outputs.values().empty()) {
    program.executable = compile_program(builder.finish(outputs.values()), what);
  }
  return std::make_shared<const Program>(std::move(program));
}

// PyTorch's decomposition, run on stand-ins: one program for the whole of it.
class DecompositionTrace {
 public:
  DecompositionTrace(const OperatorInfo& info, PrecisionCode precision, const CallState& state)
      : info_(info), precision_(precision), state_(state), trace_(program_, state, precision) {}

  // Whether run() failed because the operator came up again inside.
  bool calls_itself() const { return trace_.calls_itself() == &info_; }

  ProgramPtr run(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments,
                 const std::string& what) {
    torch::jit::Stack stack;
    for (const c10::IValue& a : arguments) stack.push_back(trace_.stand_in(a));
    const torch::jit::Stack given = stack;
    {
      const TraceGuard guard(trace_);
      if (!decompose_in_trace(info_, op, stack)) return nullptr;
    }
    if (stack.size() != info_.returns.size()) {
      throw Unsupported(info_.qualified() + ": the decomposition returned " +
                        std::to_string(stack.size()) + " values");
    }
    resize_as(given, arguments);
    LoweredCall lowered;
    for (size_t i = 0; i < info_.returns.size(); ++i) returned(info_.returns[i], stack[i], lowered);
    lowered.writes = trace_.writes();
    program_.random_count = trace_.random_count();
    ProgramPtr program =
        finish(std::move(program_), trace_.builder(), precision_, lowered, state_, what);
    if (!trace_.is_private()) store_record(info_, true, precision_, state_, *program);
    return program;
  }

 private:
  // Without a meta kernel it is the decomposition that tells an out= tensor's size.
  void resize_as(const torch::jit::Stack& traced, std::span<const c10::IValue> arguments) {
    bool resized = false;
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (!info_.arguments[i].is_out || !arguments[i].isTensor()) continue;
      const at::Tensor &out = arguments[i].toTensor(), &wanted = traced[i].toTensor();
      if (!out.defined() || out.sizes() == wanted.sizes()) continue;
      at::native::resize_output(out, wanted.sizes());
      resized = true;
    }
    if (resized) throw GatherAgain{};
  }

  sh::Value value_of(const at::Tensor& t) {
    DeviceStorage& storage = device_storage(t);
    if (!storage.contents().filled()) {
      return sh::splat(trace_.builder(), {to_element_type(t.scalar_type()), t.sizes().vec()}, 0);
    }
    return lowering::read_view(trace_.base(storage), view_of(t));
  }

  size_t fresh(const at::Tensor& t, LoweredCall& lowered) {
    LoweredCall::Fresh f;
    if (t.defined()) {
      if (!is_tpu(t)) throw TraceAborted("the decomposition left the device");
      f.dtype = t.scalar_type();
      f.sizes = t.sizes().vec();
      f.value = value_of(t);
      if (const auto order = lowering::dense_order(t.sizes(), t.strides())) {
        f.strides = t.strides().vec();
        f.value = sh::transpose(f.value, *order);
      } else {
        const auto strides = row_major_strides(t.sizes());
        f.strides.assign(strides.begin(), strides.end());
      }
    }
    lowered.fresh.push_back(std::move(f));
    return lowered.fresh.size() - 1;
  }

  void returned(const ReturnInfo& r, const c10::IValue& value, LoweredCall& lowered) {
    CallReturn ret{CallReturn::Kind::kConstant, 0, 1, {}};
    if (r.alias >= 0) {
      ret.kind = CallReturn::Kind::kArgument;
      ret.index = static_cast<size_t>(r.alias);
    } else if (r.kind == ReturnInfo::Kind::kTensor) {
      ret.kind = CallReturn::Kind::kTensor;
      ret.index = fresh(value.isNone() ? at::Tensor() : value.toTensor(), lowered);
    } else if (r.kind == ReturnInfo::Kind::kTensorList) {
      ret.kind = CallReturn::Kind::kTensorList;
      ret.index = lowered.fresh.size();
      const std::vector<at::Tensor> list = value.toTensorVector();
      ret.count = list.size();
      for (const at::Tensor& t : list) fresh(t, lowered);
    } else {
      ret.constant = value;
    }
    lowered.returns.push_back(std::move(ret));
  }

  const OperatorInfo& info_;
  const PrecisionCode precision_;
  const CallState& state_;
  Program program_;
  ProgramTrace trace_;
};

}  // namespace

void set_decomposition(Decomposition d) { decomposition() = std::move(d); }

bool decompose(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  return decomposition() && decomposition()(op, stack);
}

ProgramPtr compile_call(const OperatorInfo& info, const c10::OperatorHandle& op,
                        std::span<const c10::IValue> arguments, bool all_known, CallState& state) {
  const PrecisionCode precision = state.precision() ? state.precision() : current_precision_code();
  const std::string what = describe(info, arguments);
  if (ProgramPtr recorded = load_record(info, all_known, precision, state, what)) {
    if (recorded->by_rule) count_starts(info, state);
    return recorded;
  }
  std::string reason;  // why the rule does not serve
  if (info.rule) {
    Program program;
    sh::Builder builder;
    builder.set_float32_products(float32_products(precision));
    ProgramInputs inputs(state, all_known, builder, program);
    try {
      program.by_rule = true;
      const LoweredCall lowered = lower_operator(info, op, arguments, inputs);
      ProgramPtr compiled = finish(std::move(program), builder, precision, lowered, state, what);
      store_record(info, all_known, precision, state, *compiled);
      count_starts(info, state);
      return compiled;
    } catch (const Unsupported& e) {
      if (!state.moving.empty()) {
        keep_views_still(state);
        throw GatherAgain{};  // gathers again
      }
      reason = e.what();
    }
  } else {
    check_call(info, op, arguments);
  }
  if (!all_known) {
    ProgramPtr program = program_of_kind(Program::Kind::kKnownNumbers);
    store_record(info, all_known, precision, state, *program);
    return program;
  }
  Program::Kind kind = Program::Kind::kCpu;
  DecompositionTrace trace(info, precision, state);
  try {
    if (ProgramPtr program = trace.run(op, arguments, what)) return program;
  } catch (const runtime::CompileError&) {
    throw;
  } catch (const GatherAgain&) {
    throw;
  } catch (...) {
    // Whatever stopped it (exceptions that crossed Python have lost their type): op by op it can
    // go on, or fails for the user's eyes. One that calls itself would go on forever.
    if (!trace.calls_itself()) kind = Program::Kind::kComposite;
  }
  warn_not_covered(info, reason);
  return program_of_kind(kind);
}

void trace_call(Trace& trace, const OperatorInfo& info, const c10::OperatorHandle& op,
                torch::jit::Stack& stack) {
  if (info.rule) {
    try {
      trace.call(info, op, stack);
      return;
    } catch (const Unsupported&) {
    }
  }
  if (!decompose_in_trace(info, op, stack)) {
    throw TraceAborted(info.qualified() + " has neither rule nor decomposition");
  }
}

}  // namespace torch_tpu::eager
