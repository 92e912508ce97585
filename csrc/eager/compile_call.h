// The miss path: from a call whose signature is new to a program.
#pragma once

#include "eager/program.h"
#include "eager/trace.h"

namespace torch_tpu::eager {

// By rule; else by tracing PyTorch's decomposition (with all numbers known); else a program that
// says how to go on (see Program::Kind). Throws GatherAgain when the call must be gathered
// again, and PyTorch's errors when its arguments are wrong.
ProgramPtr compile_call(const OperatorInfo& info, const c10::OperatorHandle& op,
                        std::span<const c10::IValue> arguments, bool all_known, CallState& state);

// One call inside a trace: by rule or by decomposition.
void trace_call(Trace& trace, const OperatorInfo& info, const c10::OperatorHandle& op,
                torch::jit::Stack& stack);

// Runs the decomposition on the stack's arguments; false if there is none.
bool decompose(const c10::OperatorHandle& op, torch::jit::Stack& stack);

}  // namespace torch_tpu::eager
