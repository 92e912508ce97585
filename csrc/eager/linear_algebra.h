// Linear algebra operators which look at values on the host before they return.
#pragma once

#include <torch/library.h>

namespace torch_tpu::eager {

void register_linear_algebra(torch::Library& aten);

}  // namespace torch_tpu::eager
