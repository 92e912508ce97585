// The parts of the loss family.
#pragma once

#include "lowering/registry.h"

namespace torch_tpu::lowering {

// PyTorch's at::Reduction.
enum class LossReduction { kNone = 0, kMean = 1, kSum = 2 };
LossReduction loss_reduction(const Call& call);
// The losses of the elements, reduced.
Value reduce_loss(Value losses, LossReduction reduction);
// What a derivative is divided by: the number of elements for a mean.
double loss_count(Value losses, LossReduction reduction);

void register_elementwise_losses(Registry&);  // loss.cc: mse, huber, cross entropy of bits ...
void register_ctc_loss(Registry&);            // ctc_loss.cc
void register_class_losses(Registry&);        // class_loss.cc: nll, margins

}  // namespace torch_tpu::lowering
