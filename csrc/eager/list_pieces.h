// Operators over long lists, in the deferred mode: `_foreach_mul_` of all parameters of a deep
// model is called for equal pieces of the lists, one for every few layers. What happens to a piece
// becomes a program of its own (fusion_graph.h), the same one for all of them: neither its size nor
// the time to compile it grows with the model's depth.
#pragma once

#include <c10/util/FunctionRef.h>

#include <cstdint>

#include "eager/operator_info.h"

namespace torch_tpu::eager {

// The piece of its lists that this thread's call works on.
struct ListPiece {
  uint32_t number = 0;  // 0: all of them
  bool is_last = true;
};
ListPiece current_list_piece();

// Runs `call`, which replaces the arguments on a stack by the results, once for each piece if this
// is such an operator and its lists are long. Otherwise does nothing and returns false.
bool call_in_pieces(const OperatorInfo& info, torch::jit::Stack& stack,
                    c10::function_ref<void(torch::jit::Stack&)> call);

}  // namespace torch_tpu::eager
