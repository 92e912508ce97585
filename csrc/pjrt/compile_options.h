#pragma once

#include <string>

#include "pjrt/option.h"

namespace torch_tpu::pjrt {

struct CompileOptions {
  int num_replicas = 1;
  int num_partitions = 1;  // more than one: the compiler partitions the program (SPMD)
  // Not tied to one device: the device is chosen at each execution. Only with one replica and one
  // partition.
  bool portable = true;
  // XLA flags for this program alone, e.g. {"xla_cpu_enable_fast_math", true}.
  Options env_overrides;

  // XLA's CompileOptionsProto, written by hand: six fields do not justify a protobuf dependency.
  std::string serialize() const;
};

}  // namespace torch_tpu::pjrt
