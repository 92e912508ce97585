// A program as the C API's compilers take it.
#pragma once

#include <pjrt_c_api.h>

#include <string_view>

#include "pjrt/api.h"

namespace torch_tpu::pjrt {

// `text` (StableHLO) must outlive the result.
inline PJRT_Program stablehlo_program(std::string_view text) {
  constexpr std::string_view kFormat = "mlir";
  auto program = make_args<PJRT_Program>();
  program.code = const_cast<char*>(text.data());  // only read
  program.code_size = text.size();
  program.format = kFormat.data();
  program.format_size = kFormat.size();
  return program;
}

}  // namespace torch_tpu::pjrt
