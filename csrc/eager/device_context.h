// The current device and stream of the calling thread, and the allocator of device storages.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include "runtime/work_queue.h"

namespace torch_tpu::eager {

inline constexpr c10::DeviceType kTpu = c10::DeviceType::PrivateUse1;

int current_device();
// Throws if there is no such device, or no usable plugin.
void check_device(int device);
void set_current_device(int device);
// -1 (no index) stands for the current device.
int resolve_device(c10::Device device);
runtime::StreamId current_stream(int device);
runtime::StreamId exchange_current_stream(int device, runtime::StreamId stream);

// The registered c10::DeviceAllocator. allocate(n) makes an unfilled DeviceStorage on the current
// device; no device memory is taken until something is written.
c10::Allocator* device_allocator();

// The device's memory in bytes, or the limit set for this process where that is lower.
int64_t total_memory(int device);

}  // namespace torch_tpu::eager
