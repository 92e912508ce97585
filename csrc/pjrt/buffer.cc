#include "pjrt/buffer.h"

#include <array>
#include <cstring>
#include <string>

#include "pjrt/api.h"
#include "pjrt/error.h"
#include "pjrt/process_end.h"

namespace torch_tpu::pjrt {
namespace {

// PyTorch's own limit on dimensions.
constexpr size_t kMaxRank = 64;

// Whether the plugin says that the buffer lies in host memory as a dense row-major array.
bool is_plain_host_memory(const PJRT_Api* api, PJRT_Buffer* handle) {
  if (!has_function(api, &PJRT_Api::PJRT_Buffer_IsOnCpu) ||
      !has_function(api, &PJRT_Api::PJRT_Buffer_UnsafePointer) ||
      !has_function(api, &PJRT_Api::PJRT_Buffer_GetMemoryLayout)) {
    return false;
  }
  auto where = make_args<PJRT_Buffer_IsOnCpu_Args>();
  where.buffer = handle;
  check(api, api->PJRT_Buffer_IsOnCpu(&where), "copy to host");
  if (!where.is_on_cpu) return false;

  auto args = make_args<PJRT_Buffer_GetMemoryLayout_Args>();
  args.buffer = handle;
  check(api, api->PJRT_Buffer_GetMemoryLayout(&args), "copy to host");
  if (args.layout.type != PJRT_Buffer_MemoryLayout_Type_Tiled) return false;
  const PJRT_Buffer_MemoryLayout_Tiled& tiled = args.layout.tiled;
  for (size_t i = 0; i < tiled.minor_to_major_size; ++i) {
    if (tiled.minor_to_major[i] != static_cast<int64_t>(tiled.minor_to_major_size - 1 - i)) {
      return false;
    }
  }
  return tiled.num_tiles == 0;
}

}  // namespace

void Buffer::destroy() noexcept {
  PJRT_Buffer* const handle = std::exchange(handle_, nullptr);
  // Threads that end together with the process drop what they kept.
  if (process_is_ending()) [[unlikely]] {
    return;
  }
  auto args = make_args<PJRT_Buffer_Destroy_Args>();
  args.buffer = handle;
  discard(api_, api_->PJRT_Buffer_Destroy(&args));
}

size_t Buffer::on_device_size() const {
  auto args = make_args<PJRT_Buffer_OnDeviceSizeInBytes_Args>();
  args.buffer = handle_;
  check(api_, api_->PJRT_Buffer_OnDeviceSizeInBytes(&args), "buffer size");
  return args.on_device_size_in_bytes;
}

PJRT_Buffer_Type Buffer::element_type() const {
  auto args = make_args<PJRT_Buffer_ElementType_Args>();
  args.buffer = handle_;
  check(api_, api_->PJRT_Buffer_ElementType(&args), "buffer element type");
  return args.type;
}

std::vector<int64_t> Buffer::dimensions() const {
  auto args = make_args<PJRT_Buffer_Dimensions_Args>();
  args.buffer = handle_;
  check(api_, api_->PJRT_Buffer_Dimensions(&args), "buffer dimensions");
  return {args.dims, args.dims + args.num_dims};
}

bool Buffer::is_deleted() const {
  auto args = make_args<PJRT_Buffer_IsDeleted_Args>();
  args.buffer = handle_;
  check(api_, api_->PJRT_Buffer_IsDeleted(&args), "buffer state");
  return args.is_deleted;
}

Event Buffer::ready() const {
  auto args = make_args<PJRT_Buffer_ReadyEvent_Args>();
  args.buffer = handle_;
  check(api_, api_->PJRT_Buffer_ReadyEvent(&args), "buffer ready");
  return Event::adopt(api_, args.event);
}

Event Buffer::to_host(void* dst, size_t size) const {
  auto dims = make_args<PJRT_Buffer_Dimensions_Args>();
  dims.buffer = handle_;
  check(api_, api_->PJRT_Buffer_Dimensions(&dims), "copy to host");
  if (dims.num_dims > kMaxRank) {
    throw Error(PJRT_Error_Code_INVALID_ARGUMENT,
                "[copy to host] expected at most " + std::to_string(kMaxRank) +
                    " dimensions, got " + std::to_string(dims.num_dims));
  }
  // A null destination would only ask for the size; an array without elements may have one.
  std::byte nothing{};
  if (dst == nullptr) {
    if (size != 0) throw Error(PJRT_Error_Code_INVALID_ARGUMENT, "[copy to host] got no memory");
    dst = &nothing;
  }
  // Without a layout we would get the device's, which on a TPU need not be row-major.
  std::array<int64_t, kMaxRank> minor_to_major;
  for (size_t i = 0; i < dims.num_dims; ++i) {
    minor_to_major[i] = static_cast<int64_t>(dims.num_dims - 1 - i);
  }
  auto layout = make_args<PJRT_Buffer_MemoryLayout>();
  layout.type = PJRT_Buffer_MemoryLayout_Type_Tiled;
  layout.tiled = make_args<PJRT_Buffer_MemoryLayout_Tiled>();
  layout.tiled.minor_to_major = minor_to_major.data();
  layout.tiled.minor_to_major_size = dims.num_dims;

  auto args = make_args<PJRT_Buffer_ToHostBuffer_Args>();
  args.src = handle_;
  args.host_layout = &layout;
  args.dst = dst;
  args.dst_size = size;
  check(api_, api_->PJRT_Buffer_ToHostBuffer(&args), "copy to host");
  Event done = Event::adopt(api_, args.event);
  if (dst == &nothing) done.await();
  return done;
}

void Buffer::read(void* dst, size_t size) const {
  if (!is_plain_host_memory(api_, handle_)) return to_host(dst, size).await();
  ready().await();
  const size_t needed = on_device_size();
  if (size < needed) {
    throw Error(PJRT_Error_Code_INVALID_ARGUMENT, "[copy to host] expected room for " +
                                                      std::to_string(needed) + " bytes, got " +
                                                      std::to_string(size));
  }
  if (needed != 0) std::memcpy(dst, unsafe_pointer(), needed);
}

void* Buffer::unsafe_pointer() const {
  const auto function =
      require_function(api_, &PJRT_Api::PJRT_Buffer_UnsafePointer, "PJRT_Buffer_UnsafePointer");
  auto args = make_args<PJRT_Buffer_UnsafePointer_Args>();
  args.buffer = handle_;
  check(api_, function(&args), "buffer pointer");
  return reinterpret_cast<void*>(args.buffer_pointer);
}

Buffer Buffer::copy_to_device(const Device& device) const {
  const auto function =
      require_function(api_, &PJRT_Api::PJRT_Buffer_CopyToDevice, "PJRT_Buffer_CopyToDevice");
  auto args = make_args<PJRT_Buffer_CopyToDevice_Args>();
  args.buffer = handle_;
  args.dst_device = device.handle;
  check(api_, function(&args), "copy between devices");
  return adopt(api_, args.dst_buffer);
}

}  // namespace torch_tpu::pjrt
