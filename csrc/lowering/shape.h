// Pieces the shape rules share.
#pragma once

#include "lowering/registry.h"

namespace torch_tpu::lowering {

// `value` moved so that dimension permutation[i] comes to place i; itself when nothing moves.
Value permuted(Value value, const Dims& permutation);

// tensor.movedim(from, to)
Value move_dim(Value value, int64_t from, int64_t to);

void register_view_copies(Registry&);   // view_copies.cc
void register_view_updates(Registry&);  // view_updates.cc

}  // namespace torch_tpu::lowering
