#pragma once

#include "lowering/registry.h"

namespace torch_tpu::lowering {

// grid_sampler_2d, grid_sampler_3d and their gradients.
void register_grid_sampler(Registry&);

}  // namespace torch_tpu::lowering
