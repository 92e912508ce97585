// Compiles programs for the process's client: each once, through the compilation cache.
#pragma once

#include <stdexcept>
#include <string>

#include "pjrt/option.h"
#include "runtime/compiled_program.h"

namespace torch_tpu::runtime {

// The program could not be compiled. what() names the operation and the file the program was
// written to.
class CompileError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The program for a text, to be compiled when its executable is first asked for. The same text
// gives the same program while somebody holds it. `what` names the operation and its signature,
// for messages. `options` are XLA's flags for this program, and with the text make it what it is.
// Thread-safe.
CompiledProgramPtr prepare(std::string stablehlo_text, std::string what,
                           pjrt::Options options = {});

// Ready to run: from memory, the cache, or compiled on this thread. Callers that ask for the same
// text at the same time share one compile. Throws CompileError.
CompiledProgramPtr compile(std::string stablehlo_text, std::string what,
                           pjrt::Options options = {});
// The same by the compile pool, without waiting. Errors come out of executable().
CompiledProgramPtr compile_in_background(std::string stablehlo_text, std::string what,
                                         pjrt::Options options = {});

// Compiles outside of the cache and of the process's programs: for whoever keeps the executable.
// Throws pjrt::Error.
std::shared_ptr<pjrt::Executable> compile_apart(const std::string& stablehlo_text,
                                                const pjrt::Options& options);

// Throws CompileError when the compiler does not take an option: its name or its value.
void check_options(const pjrt::Options& options);

// Loads or compiles; for CompiledProgram, which sees to it that this is done once.
void settle(const CompiledProgramPtr& program) noexcept;

// What every program of this process depends on, as lines of text for people who list the cache
// (see cache::EntryKey). Starts the device.
const std::string& program_scope();

// Waits for what the cache still writes and the pool compiles: at the end of the process.
void finish_compiling();

}  // namespace torch_tpu::runtime
