// The programs of this process by their text, so that each is compiled once.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "runtime/compiled_program.h"

namespace torch_tpu::runtime {

class ProgramRegistry {
 public:
  static ProgramRegistry& get();

  // One whose compilation failed is made anew.
  CompiledProgramPtr find_or_add(std::string text, std::string what, pjrt::Options options);

 private:
  std::mutex mutex_;
  // By the SHA-256 of the text and the options.
  std::unordered_map<std::string, std::weak_ptr<CompiledProgram>> programs_;
  size_t sweep_at_ = 1024;
};

}  // namespace torch_tpu::runtime
