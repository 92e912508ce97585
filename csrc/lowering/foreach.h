// The parts of the foreach family.
#pragma once

#include "lowering/registry.h"

namespace torch_tpu::lowering {

void register_fused_optimizers(Registry&);  // fused_optimizer.cc
void register_amp(Registry&);               // amp.cc: the gradient scaler's two ops

}  // namespace torch_tpu::lowering
