#include "pjrt/device.h"

#include "pjrt/api.h"
#include "pjrt/error.h"

namespace torch_tpu::pjrt {

Device::Device(const PJRT_Api* api, PJRT_Device* device) : handle(device), api_(api) {
  auto description = make_args<PJRT_Device_GetDescription_Args>();
  description.device = handle;
  check(api_, api_->PJRT_Device_GetDescription(&description), "describe device");

  auto id_args = make_args<PJRT_DeviceDescription_Id_Args>();
  id_args.device_description = description.device_description;
  check(api_, api_->PJRT_DeviceDescription_Id(&id_args), "describe device");
  id = id_args.id;

  auto kind_args = make_args<PJRT_DeviceDescription_Kind_Args>();
  kind_args.device_description = description.device_description;
  check(api_, api_->PJRT_DeviceDescription_Kind(&kind_args), "describe device");
  kind.assign(kind_args.device_kind, kind_args.device_kind_size);

  auto local_args = make_args<PJRT_Device_LocalHardwareId_Args>();
  local_args.device = handle;
  check(api_, api_->PJRT_Device_LocalHardwareId(&local_args), "describe device");
  local_hardware_id = local_args.local_hardware_id;
}

std::optional<DeviceMemoryStats> Device::memory_stats() const {
  if (!has_function(api_, &PJRT_Api::PJRT_Device_MemoryStats)) return std::nullopt;
  auto args = make_args<PJRT_Device_MemoryStats_Args>();
  args.device = handle;
  try {
    check(api_, api_->PJRT_Device_MemoryStats(&args), "memory statistics");
  } catch (const Error& error) {
    if (error.code() == PJRT_Error_Code_UNIMPLEMENTED) return std::nullopt;
    throw;
  }
  DeviceMemoryStats stats;
  stats.bytes_in_use = args.bytes_in_use;
  if (args.peak_bytes_in_use_is_set) stats.peak_bytes_in_use = args.peak_bytes_in_use;
  if (args.bytes_limit_is_set) stats.bytes_limit = args.bytes_limit;
  return stats;
}

}  // namespace torch_tpu::pjrt
