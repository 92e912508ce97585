// Interned array types: two buffers of the same dtype and shape share one Layout, so comparing
// and hashing a layout is comparing a pointer.
#pragma once

#include "stablehlo/types.h"

namespace torch_tpu::runtime {

struct Layout {
  stablehlo::TensorType type;
  int64_t numel = 0;
  size_t nbytes = 0;
};

// Never freed: a process sees a bounded number of shapes. Thread-safe.
const Layout* intern_layout(const stablehlo::TensorType& type);

}  // namespace torch_tpu::runtime
