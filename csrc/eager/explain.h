// Notes of what was dispatched and why, for torch.tpu.explain().
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "eager/fusion_graph.h"

namespace torch_tpu::eager {

using CallNames = std::shared_ptr<const std::vector<std::string>>;

// One program that was dispatched while notes were taken.
struct DispatchNote {
  std::string reason;      // why it was cut there
  CallNames calls;         // the operators in it, with their operands' types
  bool known = false;      // its program was found by the signature
  bool shared = false;     // not that, but another signature has the same program
  std::string difference;  // of a new one: to the nearest that was known
  runtime::CompiledProgramPtr program;
  int64_t live_bytes = 0;  // on the current device, before it was dispatched
};

// Notes are taken from the first start to the last stop; both nest.
void start_explaining();
void stop_explaining();
bool explaining();
// The notes since the given count of them, oldest first; a process keeps the latest 100,000.
std::vector<DispatchNote> dispatch_notes(size_t from);
size_t dispatch_note_count();

// A signature that was new.
struct Miss {
  std::string difference;  // to the nearest that was known; only while explaining()
  bool shared = false;     // a signature that was known has the same program
};
// Remembers the signature that `program` was made for, for those to come.
Miss note_miss(const OperatorInfo& info, std::span<const c10::IValue> arguments, bool all_known,
               const CallState& state, const ProgramPtr& program);
// A call of an operator, before it is run; `miss` is null when its signature was known. Asked only
// while explaining().
void explain_call(const OperatorInfo& info, std::span<const c10::IValue> arguments,
                  const ProgramPtr& program, const Miss* miss);

// A compiled graph, before it is run, by its name; `difference`: of a new signature to the nearest
// that the graph knew. Asked only while explaining().
void explain_compiled(const std::string& name, bool known, const std::string& difference,
                      const Program& program);

// A fused graph as it is compared with others.
struct GraphForm {
  struct Call {
    uint64_t program = 0;  // Program::id
    const std::string* name = nullptr;
    uint32_t first_operand = 0;
    uint32_t first_value = 0;  // among the values of the graph
  };
  std::vector<Call> calls;
  std::vector<uint32_t> operands;  // codes: inputs are even, values odd
  std::vector<uint32_t> live;      // the values that leave it
  std::vector<uint32_t> donated;   // the inputs that it may take over
};

// A graph that was closed. `form` is asked for when it is new, or while explaining(); graphs of the
// same structure have the same `key`.
void explain_graph(CutReason reason, bool known, uint64_t key,
                   const runtime::CompiledProgramPtr& program,
                   const std::function<GraphForm()>& form);
// A fused program failed, and its operators one by one did not.
void explain_replay(const std::string& calls, const std::exception_ptr& error);

}  // namespace torch_tpu::eager
