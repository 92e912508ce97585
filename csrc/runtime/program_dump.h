// TORCH_TPU_DUMP_STABLEHLO=<folder> keeps the text of every program that is compiled or loaded
// from the cache, one file per distinct text.
#pragma once

#include <string>

namespace torch_tpu::runtime {

// Does nothing when the variable is not set. Throws std::runtime_error when the folder cannot be
// written to: whoever set it wants the programs. Thread-safe; processes may share a folder.
void dump_program(const std::string& stablehlo_text);

}  // namespace torch_tpu::runtime
