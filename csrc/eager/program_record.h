// What is kept of a compiled call for the next process: with it the call's first run needs neither
// PyTorch's meta kernel nor lowering, only to load the program.
#pragma once

#include <string>

#include "eager/program.h"

namespace torch_tpu::eager {

// The version of PyTorch that runs, as part of every record's key.
void set_torch_version(std::string version);

// What every record of this process depends on, as lines of text. Starts the device.
const std::string& record_scope();

// The program recorded for the gathered call at this precision (whether or not it takes any
// products), with its executable loaded (or compiled); null when
// there is none. Throws runtime::CompileError.
ProgramPtr load_record(const OperatorInfo& info, bool all_known, PrecisionCode precision,
                       const CallState& state, const std::string& what);

// Records a program of kind kCompiled or kKnownNumbers. What cannot be written down is left out.
void store_record(const OperatorInfo& info, bool all_known, PrecisionCode precision,
                  const CallState& state, const Program& program) noexcept;

}  // namespace torch_tpu::eager
