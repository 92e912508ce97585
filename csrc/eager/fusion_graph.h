// Recording operators instead of running them, so that many run as one program.
//
// Each operator is recorded as a call of the program it would be by itself: fusing is writing those
// programs as functions into one module (stablehlo/composition.h), so nothing is lowered twice.
// What an operator reads and writes are DeviceBuffers without arrays; a value that no storage holds
// any more when the graph is closed stays inside the program.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "eager/program.h"

namespace torch_tpu::eager {

// Why a graph was closed.
enum class CutReason : uint8_t {
  kRead,         // a value is needed: on the host, by a copy, by an operator that waits
  kSynchronize,  // a stream, event or device is waited for
  kRepetition,   // a piece of the graph has come twice in a row
  kSize,         // it has become large
  kMode,         // the mode changed
  kAlone,        // a program comes that cannot be a part of another
  kElsewhere,    // another thread's graph, or a program of another mode, reads a value
  kStream,       // the current stream is another one
  kThreadEnded,  // another thread takes its place
};
const char* to_string(CutReason);

// What run_program() does in the deferred mode instead of executing: `results` get buffers that the
// program will fill, and the storages that are written are bound to theirs.
void record_call(const ProgramPtr& program, const CallState& state, BufferList& results);

// Runs a call's own program through the queue: it may still be compiled, or wait for others.
void enqueue_call(const ProgramPtr& program, const CallState& state, BufferList& results);

// Threads have graphs of their own (recording_lane.h). These close them and run them, in the
// background while their programs are compiled: what this thread has recorded on the device,
void flush_own_graph(int device, CutReason reason);
// what the thread has for which this call records,
void flush_graph_of(const CallState& state, CutReason reason);
// what all of them have, on the device or on all.
void flush_graph(int device, CutReason reason);
void flush_graphs(CutReason reason);

// Operators recorded and not yet run, by all threads on all devices.
size_t recorded_calls();

// For tests: the next graph that gets as far fails there.
enum class GraphStep : uint8_t { kNone, kCompose, kSubmit };
void fail_next_graph(GraphStep step);

// Where in the user's code an operator is called, for errors in fused programs; asked only when
// TORCH_TPU_DEBUG_STACKS=1.
void set_stack_source(std::function<std::string()> source);

}  // namespace torch_tpu::eager
