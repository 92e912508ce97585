#include "eager/storage_resize.h"

#include "eager/device_storage.h"
#include "eager/dry_run.h"
#include "eager/scalar_types.h"

namespace torch_tpu::eager {

void resize_storage(const c10::Storage& storage, size_t nbytes) {
  c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
  TORCH_CHECK(impl->resizable(), "Trying to resize storage that is not resizable");
  DeviceStorage& slot = device_storage(*impl);
  if (DryRun* run = DryRun::current()) [[unlikely]] {
    run->before_resize(storage);
  }
  const Contents old = slot.contents();
  if (nbytes == 0 || (old.filled() && old.layout->numel == 0)) {
    slot.clear();
  } else if (old.filled() && nbytes > old.layout->nbytes) {
    // The old elements at the front of a larger array.
    const c10::ScalarType dtype = to_scalar_type(old.layout->type.dtype);
    const auto item = static_cast<size_t>(c10::elementSize(dtype));
    const auto n = static_cast<int64_t>((nbytes + item - 1) / item);
    const at::Tensor grown =
        make_tensor(nullptr, dtype, {n}, {1}, 0, static_cast<size_t>(n) * item, slot.device());
    const at::Tensor before = make_tensor(old.buffer, dtype, {old.layout->numel}, {1}, 0,
                                          old.layout->nbytes, slot.device());
    at::Tensor front = grown.as_strided({old.layout->numel}, {1}, 0);
    front.copy_(before);
    slot.set(device_storage(grown).buffer());
  }
  impl->set_nbytes(nbytes);
}

}  // namespace torch_tpu::eager
