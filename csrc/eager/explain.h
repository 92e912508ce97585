// Notes of what was dispatched and why, for torch.tpu.explain().
#pragma once

#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "eager/fusion_graph.h"

namespace torch_tpu::eager {

// One program that was dispatched while notes were taken.
struct DispatchNote {
  std::string reason;              // why it was cut there
  std::vector<std::string> calls;  // the operators in it, with their operands' types
  bool known = false;              // its program was in memory
  std::string difference;          // of a new one: to the nearest that was known
  runtime::CompiledProgramPtr program;
};

// Notes are taken from the first start to the last stop; both nest.
void start_explaining();
void stop_explaining();
bool explaining();
// The notes since the given count of them, oldest first; a process keeps the latest 100,000.
std::vector<DispatchNote> dispatch_notes(size_t from);
size_t dispatch_note_count();

void explain_dispatch(CutReason reason, bool known, const runtime::CompiledProgramPtr& program,
                      size_t count, const std::function<std::string(size_t)>& call);
// A fused program failed, and its operators one by one did not.
void explain_replay(const std::string& calls, const std::exception_ptr& error);

}  // namespace torch_tpu::eager
