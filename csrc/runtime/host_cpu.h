// The processor that programs for a CPU plugin are compiled for.
#pragma once

#include <string>

namespace torch_tpu::runtime {

// The model and the instruction sets, as the operating system names them, hashed: equal where the
// same machine code runs.
std::string host_cpu_identity();

}  // namespace torch_tpu::runtime
