#pragma once

#include <pjrt_c_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "pjrt/compiled_program.h"

namespace torch_tpu::pjrt {

class Client;

// A compiled program, loaded on a client, which it keeps alive. Thread-safe.
class Executable {
 public:
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

  // The program apart from its being loaded: its size, its costs, its bytes.
  CompiledProgram program() const;
  std::string serialize() const { return program().serialize(); }
  std::string fingerprint() const { return program().fingerprint(); }
  MemoryStats memory_stats() const { return program().memory_stats(); }
  CostAnalysis cost_analysis() const { return program().cost_analysis(); }

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
