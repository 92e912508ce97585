// `_foreach_addcdiv` and `_foreach_addcmul` with a CPU tensor that holds a number for each entry:
// the same as with a list of numbers.
#pragma once

#include <torch/library.h>

namespace torch_tpu::eager {

void register_list_numbers(torch::Library& aten);

}  // namespace torch_tpu::eager
