// Interned array types: two buffers of the same dtype and shape share one Layout, so comparing
// and hashing a layout is comparing a pointer.
#pragma once

#include <atomic>
#include <string>

#include "stablehlo/types.h"

namespace torch_tpu::runtime {

struct Layout {
  stablehlo::TensorType type;
  int64_t numel = 0;
  size_t nbytes = 0;
  mutable std::atomic<int64_t> live{0};  // arrays of this type, on all devices
};

// Never freed: a process sees a bounded number of shapes. Thread-safe.
const Layout* intern_layout(const stablehlo::TensorType& type);

// The array types that take most memory now, for people: "3 x f32[1024, 1024] = 12.0 MiB, ...".
std::string describe_live_arrays();

}  // namespace torch_tpu::runtime
