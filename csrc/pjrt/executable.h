#pragma once

#include <pjrt_c_api.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>

namespace torch_tpu::pjrt {

class Client;

// A compiled program, loaded on a client, which it keeps alive. Thread-safe.
class Executable {
 public:
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

  // Takes ownership of `handle`. Use Client::compile or Client::deserialize.
  Executable(std::shared_ptr<Client> client, PJRT_LoadedExecutable* handle);

  // Enqueues one run on `device` and returns without waiting for it. A program that is not portable
  // takes null: it runs on the device it was compiled for. `outputs` has room for num_outputs()
  // handles, which the caller then owns. Arguments marked as donated in the program are consumed,
  // except those whose positions are in `non_donatable`. This is the hot path of every op: it
  // allocates nothing.
  void execute(PJRT_Buffer* const* args, size_t num_args, PJRT_Buffer** outputs,
               std::span<const int64_t> non_donatable, PJRT_Device* device) const;

  size_t num_outputs() const noexcept { return num_outputs_; }

  // For Client::deserialize of the same plugin build.
  std::string serialize() const;
  std::string fingerprint() const;
  // These two, like fingerprint, are not offered by every plugin: Error UNIMPLEMENTED.
  MemoryStats memory_stats() const;
  CostAnalysis cost_analysis() const;

 private:
  struct Deleter {
    const PJRT_Api* api;
    void operator()(PJRT_LoadedExecutable* handle) const noexcept;
  };

  std::shared_ptr<Client> client_;  // declared first: must outlive the handle
  const PJRT_Api* api_;
  std::unique_ptr<PJRT_LoadedExecutable, Deleter> handle_;
  size_t num_outputs_ = 0;
};

}  // namespace torch_tpu::pjrt
