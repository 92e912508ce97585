#include "eager/dispatch.h"

#include "eager/compile_call.h"
#include "eager/cpu_error.h"
#include "eager/debug_mode.h"
#include "eager/device_context.h"
#include "eager/dry_run.h"
#include "eager/explain.h"
#include "eager/list_pieces.h"
#include "eager/mode.h"
#include "eager/program.h"
#include "eager/trace.h"
#include "pjrt/error.h"
#include "runtime/compile_service.h"
#include "runtime/statistics.h"

namespace torch_tpu::eager {

namespace {

// PJRT_Error_Code_RESOURCE_EXHAUSTED
constexpr int kResourceExhausted = 8;

std::span<const c10::IValue> arguments_of(const OperatorInfo& info,
                                          const torch::jit::Stack& stack) {
  return {stack.data() + (stack.size() - info.arguments.size()), info.arguments.size()};
}

void run(const ProgramPtr& program, const OperatorInfo& info, const c10::OperatorHandle& op,
         CallState& state, torch::jit::Stack& stack, const Miss* miss);

// Runs `body`. If it refuses the call, the error is the one of PyTorch's CPU kernel where there is
// one: meta kernels, rules and decompositions know what is wrong, but say it in their own words.
template <typename Body>
auto refusing_as_cpu_does(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments,
                          Body&& body) -> decltype(body()) {
  try {
    return body();
  } catch (const GatherAgain&) {
    throw;
  } catch (const TraceAborted&) {
    throw;
  } catch (const runtime::CompileError&) {
    throw;
  } catch (const pjrt::Error&) {
    throw;
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (...) {
    throw_as_cpu_does(op, arguments);
    throw;
  }
}

// Looks the gathered call up, or compiles it.
void find_and_run(const OperatorInfo& info, const c10::OperatorHandle& op, bool all_known,
                  torch::jit::Stack& stack) {
  const ScopedCallState state;
  gather(info, arguments_of(info, stack), all_known, *state);
  ProgramPtr program = find_program(state->key);
  std::optional<Miss> miss;
  if (program) {
    runtime::statistics().cache_hits.fetch_add(1, std::memory_order_relaxed);
  } else {
    const auto compile = [&] {
      const auto arguments = arguments_of(info, stack);
      return refusing_as_cpu_does(
          op, arguments, [&] { return compile_call(info, op, arguments, all_known, *state); });
    };
    for (int attempts = 1; !program; ++attempts) {
      try {
        program = compile();
      } catch (const GatherAgain&) {
        // Once for results of another size, once for views that cannot move.
        TORCH_CHECK(attempts < 4, info.qualified(),
                    ": expected results whose sizes do not depend on themselves; each time one is "
                    "resized, another size is wanted. Give it a tensor that is no argument too");
        gather(info, arguments_of(info, stack), all_known, *state);
      }
    }
    if (program->precision) {
      // A program that depends on the precision never serves a signature that leaves it open.
      info.uses_precision.store(true, std::memory_order_relaxed);
      state->set_precision(program->precision);
    }
    store_program(state->key, program);
    if (program->executable) {
      miss = note_miss(info, arguments_of(info, stack), all_known, *state, program);
    }
    if (program->precision) notice_precision(program->precision);
  }
  run(program, info, op, *state, stack, miss ? &*miss : nullptr);
}

void run(const ProgramPtr& program, const OperatorInfo& info, const c10::OperatorHandle& op,
         CallState& state, torch::jit::Stack& stack, const Miss* miss) {
  switch (program->kind) {
    case Program::Kind::kCompiled:
      if (explaining() && program->executable && !DryRun::current()) [[unlikely]] {
        explain_call(info, arguments_of(info, stack), program, miss);
      }
      run_program(program, state, info.arguments.size(), stack);
      return;
    case Program::Kind::kKnownNumbers:
      find_and_run(info, op, true, stack);
      return;
    case Program::Kind::kComposite:
      refusing_as_cpu_does(op, arguments_of(info, stack), [&] {
        TORCH_CHECK(decompose(op, stack), info.qualified(), ": the decomposition is gone");
      });
      return;
    case Program::Kind::kCpu:
      run_on_cpu(info, op, stack, "no lowering rule covers it");
      return;
  }
}

// zeros_like(x, device=...) and its kin, when that is not the device of x: PyTorch's own kernel of
// them goes from any device to any.
bool changes_device(const OperatorInfo& info, const c10::OperatorHandle& op,
                    torch::jit::Stack& stack) {
  if (info.device_argument < 0) [[likely]] {
    return false;
  }
  const auto arguments = arguments_of(info, stack);
  const c10::IValue& wanted = arguments[static_cast<size_t>(info.device_argument)];
  if (wanted.isNone()) return false;
  const c10::Device device = wanted.toDevice();
  const bool stays = device.type() == kTpu &&
                     (!arguments[0].isTensor() ||
                      resolve_device(device) == resolve_device(arguments[0].toTensor().device()));
  if (stays) return false;
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
  return true;
}

}  // namespace

void rethrow_as_torch_error(const char* what) {
  try {
    throw;
  } catch (const pjrt::Error& e) {
    if (e.code() == kResourceExhausted) {
      TORCH_CHECK_WITH(OutOfMemoryError, false, what, ": out of device memory (",
                       live_memory(current_device()), "): ", e.what());
    }
    TORCH_CHECK(false, what, ": ", e.what());
  } catch (const lowering::InvalidArgument& e) {
    switch (e.kind) {
      case lowering::InvalidArgument::Kind::kIndex:
        TORCH_CHECK_INDEX(false, e.what());
        break;
      case lowering::InvalidArgument::Kind::kValue:
        TORCH_CHECK_VALUE(false, e.what());
        break;
      case lowering::InvalidArgument::Kind::kNotImplemented:
        TORCH_CHECK_NOT_IMPLEMENTED(false, e.what());
        break;
      case lowering::InvalidArgument::Kind::kRuntime:
        break;
    }
    TORCH_CHECK(false, e.what());
  } catch (const runtime::CompileError& e) {
    TORCH_CHECK(false, e.what());
  } catch (const std::invalid_argument& e) {
    TORCH_CHECK_VALUE(false, e.what());  // an environment variable that makes no sense
  } catch (const stablehlo::BuildError& e) {
    TORCH_CHECK(false, what, ": ", e.what());
  } catch (const lowering::Unsupported& e) {
    TORCH_CHECK_NOT_IMPLEMENTED(false, e.what());
  }
}

void dispatch(const OperatorInfo& info, const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  try {
    if (changes_device(info, op, stack)) return;
    if (Trace* trace = Trace::current()) {
      const torch::jit::Stack given(stack.end() - static_cast<ptrdiff_t>(info.arguments.size()),
                                    stack.end());
      refusing_as_cpu_does(op, given, [&] { trace_call(*trace, info, op, stack); });
      return;
    }
    runtime::statistics().ops.fetch_add(1, std::memory_order_relaxed);
    const EagerMode mode = current_mode();
    if (mode == EagerMode::kDeferNeverAndLaunchBlocking && !DryRun::current()) [[unlikely]] {
      debug_call(info, op, stack, [&] { find_and_run(info, op, false, stack); });
      return;
    }
    if (mode == EagerMode::kDeferAndFuse && info.element_by_element && !DryRun::current() &&
        call_in_pieces(info, stack,
                       [&](torch::jit::Stack& piece) { find_and_run(info, op, false, piece); })) {
      return;
    }
    find_and_run(info, op, false, stack);
  } catch (const TraceAborted&) {
    throw;
  } catch (...) {
    rethrow_as_torch_error(info.name.c_str());
  }
}

void OperatorFunctor::operator()(const c10::OperatorHandle& op, c10::DispatchKeySet,
                                 torch::jit::Stack* stack) {
  dispatch(info_, op, *stack);
}

void dispatch_fallback(const c10::OperatorHandle& op, c10::DispatchKeySet,
                       torch::jit::Stack* stack) {
  dispatch(operator_info(op), op, *stack);
}

}  // namespace torch_tpu::eager
