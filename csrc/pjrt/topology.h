// Devices that need not be attached: what a plugin's compiler knows about them, and programs for
// them.
#pragma once

#include <pjrt_c_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "pjrt/compile_options.h"
#include "pjrt/compiled_program.h"
#include "pjrt/plugin.h"

namespace torch_tpu::pjrt {

// Loads libtpu for its compiler. Without a TPU (`tpu_attached` false) it would wait for a cloud
// machine's metadata, refuse a second process and write log files; it is told not to, by
// environment variables that are there only during the call. Like any change of the environment,
// the first call must not race with another thread's getenv in C code.
std::shared_ptr<Plugin> load_compiler(const std::string& libtpu, bool tpu_attached);

// A kind and number of devices, e.g. "v5e:2x2" for libtpu. Thread-safe.
class Topology {
 public:
  // Throws Error when the plugin does not know the name.
  Topology(std::shared_ptr<Plugin> plugin, std::string name);

  const std::string& name() const noexcept { return name_; }
  const std::string& device_kind() const noexcept { return device_kind_; }  // "TPU v5 lite"
  size_t num_devices() const noexcept { return num_devices_; }
  // The plugin's build: its executables are for it alone.
  std::string plugin() const { return plugin_->identity(); }
  // Bytes one device has for programs and their data; nullopt from a plugin that does not say.
  std::optional<int64_t> device_memory() const;

  // Blocks. Throws Error with the compiler's message.
  CompiledProgram compile(std::string_view stablehlo, const CompileOptions& options) const;

 private:
  struct Deleter {
    const PJRT_Api* api;
    void operator()(PJRT_TopologyDescription* handle) const noexcept;
  };

  const PJRT_Api* api() const noexcept { return plugin_->api(); }

  std::shared_ptr<Plugin> plugin_;
  std::string name_;
  std::unique_ptr<PJRT_TopologyDescription, Deleter> handle_;
  std::string device_kind_;
  size_t num_devices_ = 0;
};

}  // namespace torch_tpu::pjrt
