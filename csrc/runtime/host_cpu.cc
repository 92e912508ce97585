#include "runtime/host_cpu.h"

#include <fstream>

#include "cache/digest.h"

namespace torch_tpu::runtime {

std::string host_cpu_identity() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  std::string line, identity;
  while (std::getline(cpuinfo, line)) {
    if (line.empty()) break;  // the first processor speaks for all
    // "Features" is what ARM's kernels call the flags.
    if (line.starts_with("model name") || line.starts_with("flags") ||
        line.starts_with("Features") || line.starts_with("CPU part")) {
      identity += line;
    }
  }
  return cache::sha256({identity}).hex();
}

}  // namespace torch_tpu::runtime
