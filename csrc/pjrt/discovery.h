#pragma once

#include <memory>
#include <string>
#include <vector>

#include "pjrt/plugin.h"

namespace torch_tpu::pjrt {

// Where plugins may be. Python knows the installed packages and fills this in.
struct PluginSearch {
  std::vector<std::string> libtpu;  // candidate paths of libtpu.so, best first
  std::vector<std::string> cpu;     // candidate paths of CPU plugins, newest first
  std::string sys_root = "/sys";    // where the kernel shows the hardware; tests point elsewhere
  std::string dev_root = "/dev";
};

struct PluginChoice {
  std::string path;
  std::string source;  // why: "TORCH_TPU_PJRT_PLUGIN", "libtpu" or "cpu"
};

// Whether a TPU is attached to this machine.
bool tpu_hardware_present(const PluginSearch& search);

// Picks a plugin: the path in TORCH_TPU_PJRT_PLUGIN; else libtpu if a TPU is attached; else the
// first CPU plugin that exists. A choice is never passed over in silence: a TPU without libtpu, or
// a path that does not exist, is an Error that lists what was tried and what to do.
PluginChoice choose_plugin(const PluginSearch& search);

// Loads the choice. If it cannot be loaded, the Error also says how it was chosen and how to choose
// another.
std::shared_ptr<Plugin> load_plugin(const PluginChoice& choice);

}  // namespace torch_tpu::pjrt
