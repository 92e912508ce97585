#pragma once

#include <pjrt_c_api.h>

#include <cstdint>
#include <optional>
#include <string>

namespace torch_tpu::pjrt {

struct DeviceMemoryStats {
  int64_t bytes_in_use = 0;
  // Not every plugin that counts memory knows these two.
  std::optional<int64_t> peak_bytes_in_use;
  std::optional<int64_t> bytes_limit;
};

// A device of a client, which owns it: valid as long as the client is.
class Device {
 public:
  // Reads the description. Throws Error.
  Device(const PJRT_Api* api, PJRT_Device* handle);

  int id = -1;                 // unique among all devices of all processes
  int local_hardware_id = -1;  // position on this machine
  std::string kind;            // the vendor's name, e.g. "TPU v5 lite" or "cpu"
  PJRT_Device* handle = nullptr;

  // nullopt when the plugin does not count memory (CPU plugins do not).
  std::optional<DeviceMemoryStats> memory_stats() const;

 private:
  const PJRT_Api* api_;
};

}  // namespace torch_tpu::pjrt
