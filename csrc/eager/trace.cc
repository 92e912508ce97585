#include "eager/trace.h"

#include "eager/call_state.h"
#include "eager/device_context.h"
#include "eager/scalar_types.h"

namespace torch_tpu::eager {

namespace sh = stablehlo;

namespace {
thread_local Trace* t_current = nullptr;
}  // namespace

Trace* Trace::current() { return t_current; }

TraceGuard::TraceGuard(Trace& trace) : previous_(t_current) { t_current = &trace; }
TraceGuard::~TraceGuard() { t_current = previous_; }

TraceAborted::TraceAborted(const std::string& reason) : std::runtime_error(reason) {
  if (t_current) t_current->set_refusal(reason);
}

void require_real_values(const char* what) {
  if (t_current) {
    throw TraceAborted(std::string(what) + " needs values while an operator is being traced");
  }
}

sh::Value Trace::base(DeviceStorage& storage) {
  const Contents contents = storage.contents();
  if (!contents.traced || &contents.traced.builder() != &builder_) {
    throw TraceAborted("a tensor from outside is used while an operator is being traced");
  }
  return contents.traced;
}

lowering::Number Trace::number(const c10::IValue& value, bool, bool) { return known_number(value); }

sh::Value Trace::cpu_scalar(const at::Tensor& tensor) {
  const NumberOperand operand = number_operand(tensor);
  return sh::constant_bytes(builder_, operand.bits.data(), {operand.type, {}});
}

sh::Value Trace::random(int64_t count) {
  RandomSource& source = random_source_;
  if (!source.state) source.state = random_();
  // Each draw starts where the one before ended: four numbers per counter step.
  const int64_t steps = source.count / 4;
  source.count += (count + 3) / 4 * 4;
  if (steps == 0) return source.state;
  const std::array<int64_t, 2> words{0, steps};
  return sh::add(source.state, sh::constant(builder_, words, sh::ElementType::kU64));
}

at::Tensor Trace::placeholder(sh::Value base, const at::Tensor& like) {
  at::Tensor t = make_tensor(nullptr, like.scalar_type(), like.sizes(), like.strides(),
                             like.storage_offset(), like.storage().nbytes(), like.device().index());
  if (base) device_storage(t).set_traced(base);
  return t;
}

void Trace::call(const OperatorInfo& info, const c10::OperatorHandle& op,
                 torch::jit::Stack& stack) {
  const size_t n = info.arguments.size();
  const std::span<const c10::IValue> arguments(stack.data() + (stack.size() - n), n);
  before_call(arguments);
  int device = current_device();
  for (const c10::IValue& a : arguments) {
    if (a.isTensor() && is_tpu(a.toTensor())) device = a.toTensor().device().index();
  }
  LoweredCall lowered;
  try {
    lowered = lower_operator(info, op, arguments, *this);
  } catch (const GatherAgain&) {
    lowered = lower_operator(info, op, arguments, *this);
  }
  for (const auto& [storage, value] : lowered.writes) write(*storage, value);
  const auto new_tensor = [&](const LoweredCall::Fresh& f) {
    if (!f.value) return at::Tensor();
    at::Tensor t =
        make_tensor(nullptr, f.dtype, f.sizes, f.strides, 0,
                    static_cast<size_t>(f.value.numel()) * c10::elementSize(f.dtype), device);
    write(device_storage(t), f.value);
    return t;
  };
  push_returns(lowered.returns, [&](size_t i) { return new_tensor(lowered.fresh[i]); }, n, stack);
}

}  // namespace torch_tpu::eager
