// What has been dispatched on each stream and may still be running. PJRT orders work by data, so
// a stream needs no queue of its own: it only remembers which results to wait for.
#pragma once

#include <vector>

#include "runtime/device_buffer.h"

namespace torch_tpu::runtime {

using StreamId = int64_t;

// Remembers a result computed on a stream. Cheap: results nobody holds any more are forgotten.
void record_work(int device, StreamId stream, const DeviceBufferPtr& result);

// The results on the stream (or on every stream of the device) that are not known to be ready.
std::vector<DeviceBufferPtr> pending_work(int device, StreamId stream);
std::vector<DeviceBufferPtr> pending_work(int device);

// Waits for all of them; throws pjrt::Error if one failed. The others are waited for first.
void await_all(const std::vector<DeviceBufferPtr>& work);
bool all_ready(const std::vector<DeviceBufferPtr>& work);

void synchronize(int device);
void synchronize(int device, StreamId stream);

}  // namespace torch_tpu::runtime
