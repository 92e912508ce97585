// Operators whose result's shape depends on values: they wait for the device once.
#pragma once

#include <torch/library.h>

namespace torch_tpu::eager {

void register_data_dependent(torch::Library& aten);

}  // namespace torch_tpu::eager
