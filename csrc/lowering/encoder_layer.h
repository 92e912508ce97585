#pragma once

#include "lowering/registry.h"

namespace torch_tpu::lowering {

// What torch.nn.MultiheadAttention and torch.nn.TransformerEncoderLayer call when they infer.
void register_encoder_layer(Registry&);

}  // namespace torch_tpu::lowering
