// A graph as a program for a compiler that need not be here, from the types of its inputs alone: no
// device is started, nothing is compiled or run.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lowering/platform.h"

namespace torch_tpu::compile {

// In the program, an input is a dense row-major array of these sizes. The strides are what the
// graph sees.
struct ExportInput {
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<int64_t> sizes, strides;
};

// The memory of an input becomes that of an output, of the same type.
struct ExportAlias {
  size_t output = 0, input = 0;
};

struct ExportedGraph {
  std::string text;  // StableHLO
  // 32-bit random numbers that a run draws. Unless 0, the program has one more input, the last: the
  // seed and the offset of the generator, ui64[2].
  int64_t random_count = 0;
};

struct ExportResults {
  std::vector<at::Tensor> outputs;
  std::vector<ExportAlias> aliases;
};

// Runs the graph's operators on tensors of a trace; gives tensors of the trace.
using ExportBody = std::function<ExportResults(const std::vector<at::Tensor>& inputs)>;

// Products of float32 are taken at the thread's current precision: as attributes for a TPU's
// compiler, imitated in the program for a CPU's. The outputs are row-major arrays. Throws what
// `body` throws, and c10::Error when it writes to an input.
ExportedGraph export_graph(std::span<const ExportInput> inputs, const ExportBody& body,
                           lowering::Platform platform);

}  // namespace torch_tpu::compile
