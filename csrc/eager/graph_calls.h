// The operators of a graph that is recorded (fusion_graph.h), as they are known once it is closed.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "eager/program.h"

namespace torch_tpu::eager {

// Codes of operands in a graph: inputs are even, results of its own calls odd.
constexpr uint32_t input_code(size_t i) { return static_cast<uint32_t>(i) << 1; }
constexpr uint32_t value_code(size_t i) { return static_cast<uint32_t>(i) << 1 | 1; }
constexpr bool is_value(uint32_t code) { return (code & 1) != 0; }

// An operator, as a call of the program it would be by itself.
struct Call {
  ProgramPtr program;
  uint32_t first_operand = 0;
  std::string stack;  // of the code that called, if wanted
};

struct GraphCalls {
  std::deque<Call> calls;
  std::vector<uint32_t> operands;
  std::vector<uint32_t> live;  // values that leave the graph, in the order of the batch's outputs
};

// For messages: the first few operators' names.
std::string names_of(const GraphCalls& what);

}  // namespace torch_tpu::eager
