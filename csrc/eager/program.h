// A compiled operator call: what to pass, what to run, where the results go.
#pragma once

#include <ATen/core/ivalue.h>

#include <atomic>
#include <memory>
#include <span>
#include <vector>

#include "eager/call_return.h"
#include "eager/call_state.h"
#include "runtime/compiled_program.h"

namespace torch_tpu::eager {

uint64_t next_program_id();

struct Program {
  // How calls of this signature are served.
  enum class Kind : uint8_t {
    kCompiled,      // by the executable
    kKnownNumbers,  // by another program, whose signature includes all numbers
    kComposite,     // by running the operator's decomposition, op by op
    kCpu,           // by the CPU
  };
  struct Parameter {
    enum class Kind : uint8_t { kStorage, kNumber, kRandom } kind = Kind::kStorage;
    bool donated = false;
    uint32_t index = 0;  // storage slot or number
  };
  struct Output {
    const runtime::Layout* layout = nullptr;
    int slot = -1;  // the storage that is rebound; -1: a new tensor's
  };
  struct NewTensor {
    int output = -1;  // -1: an undefined tensor
    c10::ScalarType dtype = c10::ScalarType::Undefined;
    std::vector<int64_t> sizes, strides;
    size_t nbytes = 0;
  };

  Kind kind = Kind::kCompiled;
  uint64_t id = next_program_id();         // no other program of the process has it
  bool by_rule = false;                    // and not by tracing a decomposition
  runtime::CompiledProgramPtr executable;  // null when nothing is computed
  std::vector<Parameter> parameters;
  std::vector<Output> outputs;
  std::vector<NewTensor> tensors;
  std::vector<CallReturn> returns;
  int64_t random_count = 0;  // 32-bit random numbers drawn per run
  size_t output_bytes = 0;
  PrecisionCode precision = 0;  // at which it takes products of float32; 0: it takes none
  // When it was last looked up, counted in programs stored; for eviction.
  // Read and written through std::atomic_ref.
  mutable uint64_t last_used = 0;
};

using ProgramPtr = std::shared_ptr<const Program>;

// Signatures to programs. Each thread keeps its own copy of what it used, so a hit takes no lock.
// Beyond max_programs(), or the bytes that settings allow, the quarter that has not been used for
// longest is dropped: every loaded program of a CPU plugin takes about ten memory mappings, of
// which a process has 65,530.
ProgramPtr find_program(std::span<const uint64_t> key);
void store_program(std::span<const uint64_t> key, const ProgramPtr& program);
void clear_programs();
// Drops the programs that could not be compiled in the background: they are tried again.
void forget_failed_programs();
size_t program_count();
// TORCH_TPU_MAX_PROGRAMS, 4096 by default.
size_t max_programs();

using BufferList = c10::SmallVector<runtime::DeviceBufferPtr, 8>;

// Runs a program that has an executable in the way of the current mode: now, from the queue, as a
// part of a graph, or not at all in a dry run. `results` get its outputs, and the storages that are
// written are bound to theirs.
void launch(const ProgramPtr& program, const CallState& state, BufferList& results);

// Runs a compiled program for the gathered call and replaces the arguments on the stack by the
// returns.
void run_program(const ProgramPtr& program, CallState& state, size_t num_arguments,
                 torch::jit::Stack& stack);

// A device array holding the number, from a per-thread cache.
runtime::DeviceBufferPtr number_buffer(const NumberOperand& number, int device);

// Draws the program's random numbers and gives (seed, offset) as a device array, u64[2].
runtime::DeviceBufferPtr random_buffer(const Program& program, const CallState& state);

// What takes the device's memory, for an out-of-memory message.
std::string live_memory(int device);

// Checks the memory limit before `nbytes` more are taken; throws c10::OutOfMemoryError.
void check_memory(int device, size_t nbytes, const char* what);

}  // namespace torch_tpu::eager
