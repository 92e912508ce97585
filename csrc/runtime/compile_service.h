// Compiles programs for the process's client, through the cache directory.
#pragma once

#include <memory>
#include <string>

#include "pjrt/executable.h"

namespace torch_tpu::runtime {

// The program could not be compiled. what() names the operation and the file the program was
// written to.
class CompileError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// `what` names the operation and its signature, for the error message. Thread-safe; blocks.
std::shared_ptr<pjrt::Executable> compile(const std::string& stablehlo_text,
                                          const std::string& what);

}  // namespace torch_tpu::runtime
