// When a call's program is compiled: the mode decides.
#pragma once

#include <string>

#include "pjrt/option.h"
#include "runtime/compiled_program.h"

namespace torch_tpu::eager {

// The program for a StableHLO text: ready in debug mode, compiled in the background in strict mode
// and dry runs, and only when it is asked for in the deferred mode. `options` are XLA's flags for
// this program.
runtime::CompiledProgramPtr compile_program(std::string text, const std::string& what,
                                            const pjrt::Options& options = {});

}  // namespace torch_tpu::eager
