// The parts of the normalization family.
#pragma once

#include "lowering/registry.h"

namespace torch_tpu::lowering {

void register_softmax(Registry&);      // softmax.cc: softmax, log_softmax and their backwards
void register_layer_norm(Registry&);   // layer_norm.cc: layer and group norm, forward and backward
void register_batch_norm(Registry&);   // batch_norm.cc: all spellings of batch norm
void register_weight_norm(Registry&);  // weight_norm.cc

}  // namespace torch_tpu::lowering
