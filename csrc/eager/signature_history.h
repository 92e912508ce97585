// The forms of the calls that programs were made for: what makes a new signature new.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "eager/program.h"

namespace torch_tpu::eager {

// A call for people: operator, dtypes and shapes. Of a factory, whose operands say little, what its
// `program` makes as well.
std::string describe_call(const OperatorInfo& info, std::span<const c10::IValue> arguments,
                          const Program& program);

// Remembers the call that `program` was made for. The latest forms of each operator are kept. If
// `wanted`, gives the first difference to the nearest of them; empty when there is none.
std::string note_signature(const OperatorInfo& info, std::span<const c10::IValue> arguments,
                           bool all_known, const CallState& state, const Program& program,
                           bool wanted);

// The first difference between two programs' calls, "argument 'self': dimension 1 is 48, was 32".
// Empty when they are of different operators, or one of them has been forgotten.
std::string signature_difference(uint64_t program, uint64_t other);

// The call of the program (by id), as describe_call() gives it; `otherwise` when forgotten.
std::string call_of_program(uint64_t program, const std::string& otherwise);

}  // namespace torch_tpu::eager
