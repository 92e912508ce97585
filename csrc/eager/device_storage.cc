#include "eager/device_storage.h"

#include <memory>

#include "eager/device_context.h"
#include "eager/dry_run.h"
#include "eager/scalar_types.h"
#include "runtime/block_pool.h"

namespace torch_tpu::eager {

namespace {

void delete_device_storage(void* context) {
  const std::unique_ptr<DeviceStorage> owned(static_cast<DeviceStorage*>(context));
}

}  // namespace

void* DeviceStorage::operator new(size_t) {
  return runtime::BlockPool<sizeof(DeviceStorage)>::take();
}

void DeviceStorage::operator delete(void* p) noexcept {
  runtime::BlockPool<sizeof(DeviceStorage)>::give_back(p);
}

c10::DataPtr make_data_ptr(int device) {
  auto storage = std::make_unique<DeviceStorage>(device);
  if (const DryRun* run = DryRun::current()) [[unlikely]] {
    run->mark_made(*storage);
  }
  auto* const address = reinterpret_cast<void*>(storage->address());
  return c10::DataPtr(address, storage.release(), &delete_device_storage,
                      c10::Device(kTpu, static_cast<c10::DeviceIndex>(device)));
}

DeviceStorage& device_storage(const c10::StorageImpl& storage) {
  if (auto* found = storage.data_ptr().cast_context<DeviceStorage>(&delete_device_storage))
      [[likely]] {
    return *found;
  }
  // PyTorch has made a tensor of the address of one of ours.
  const auto address = reinterpret_cast<uintptr_t>(storage.data_ptr().get());
  DeviceStorage* const found = storage_at(address);
  TORCH_CHECK(found != nullptr, "tpu: there is no storage at the address ", address,
              "; only the beginning of a storage can be passed on by its address");
  return *found;
}

DeviceStorage& device_storage(const at::Tensor& tensor) {
  return device_storage(*tensor.storage().unsafeGetStorageImpl());
}

at::Tensor make_tensor(runtime::DeviceBufferPtr buffer, c10::ScalarType dtype,
                       c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t offset,
                       size_t nbytes, int device) {
  c10::DataPtr data = make_data_ptr(device);
  if (buffer) static_cast<DeviceStorage*>(data.get_context())->set(std::move(buffer));
  c10::Storage storage(c10::make_intrusive<runtime::Pooled<c10::StorageImpl>>(
      c10::StorageImpl::use_byte_size_t(), nbytes, std::move(data), device_allocator(),
      /*resizable=*/true));
  at::Tensor t = at::detail::make_tensor<runtime::Pooled<c10::TensorImpl>>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      c10::scalarTypeToTypeMeta(dtype));
  if (sizes.size() != 1 || sizes[0] != 0) {
    t.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  }
  return t;
}

lowering::ViewSpec view_of(const at::Tensor& tensor) {
  return {to_element_type(tensor.scalar_type()), tensor.sizes().vec(), tensor.strides().vec(),
          tensor.storage_offset()};
}

std::optional<stablehlo::Dims> whole_order(const at::Tensor& tensor) {
  if (tensor.storage_offset() != 0 ||
      static_cast<size_t>(tensor.numel()) * tensor.itemsize() != tensor.storage().nbytes()) {
    return std::nullopt;
  }
  return lowering::dense_order(tensor.sizes(), tensor.strides());
}

c10::SmallVector<int64_t, 6> row_major_strides(c10::IntArrayRef sizes) {
  c10::SmallVector<int64_t, 6> strides(sizes.size());
  int64_t stride = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= std::max<int64_t>(sizes[i], 1);
  }
  return strides;
}

}  // namespace torch_tpu::eager
