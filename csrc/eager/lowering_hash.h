// Identifies the code that turns calls into programs.
#pragma once

namespace torch_tpu::eager {

// A hash of the sources (see cmake/lowering_hash.cmake), made by the build.
const char* lowering_hash();

}  // namespace torch_tpu::eager
