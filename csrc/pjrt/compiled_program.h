#pragma once

#include <pjrt_c_api.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

namespace torch_tpu::pjrt {

// Bytes on one device, as the compiler planned them.
struct MemoryStats {
  int64_t generated_code = 0;
  int64_t arguments = 0;
  int64_t outputs = 0;
  int64_t aliased = 0;  // output bytes that reuse arguments
  int64_t temporaries = 0;
  int64_t peak = 0;  // 0 from a plugin that does not say
};

// What the compiler estimates, by XLA's names: "flops", "bytes accessed", ...
using CostAnalysis = std::map<std::string, double>;

// What the compiler made of a program, whether or not a client can run it here. Thread-safe.
class CompiledProgram {
 public:
  // Takes ownership of `handle`.
  CompiledProgram(const PJRT_Api* api, PJRT_Executable* handle);

  size_t num_outputs() const;
  // For Client::deserialize of the same plugin build.
  std::string serialize() const;
  // These are not offered by every plugin: Error UNIMPLEMENTED.
  std::string fingerprint() const;
  MemoryStats memory_stats() const;
  CostAnalysis cost_analysis() const;

 private:
  struct Deleter {
    const PJRT_Api* api;
    void operator()(PJRT_Executable* handle) const noexcept;
  };

  // Calls `function` with Args about this program and returns the filled Args.
  template <typename Args, typename Function>
  Args ask(Function* function, const char* operation) const;

  const PJRT_Api* api_;
  std::unique_ptr<PJRT_Executable, Deleter> handle_;
};

}  // namespace torch_tpu::pjrt
