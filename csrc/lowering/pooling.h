// The parts of the pooling family.
#pragma once

#include "lowering/registry.h"

namespace torch_tpu::lowering {

void register_fractional_pooling(Registry&);  // fractional_pooling.cc: windows at drawn places

}  // namespace torch_tpu::lowering
