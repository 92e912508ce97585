// PyTorch's dtypes and StableHLO's.
#pragma once

#include <c10/core/ScalarType.h>

#include "stablehlo/types.h"

namespace torch_tpu::eager {

// Throws c10::NotImplementedError for dtypes the device does not have (complex32, quantized,
// sub-byte).
stablehlo::ElementType to_element_type(c10::ScalarType type);
c10::ScalarType to_scalar_type(stablehlo::ElementType type);

}  // namespace torch_tpu::eager
