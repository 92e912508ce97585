#include "eager/view_ops.h"

#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>

#include "eager/copy.h"
#include "eager/device_context.h"
#include "eager/device_storage.h"
#include "eager/dry_run.h"
#include "eager/storage_resize.h"
#include "eager/trace.h"

namespace torch_tpu::eager {

namespace {

void grow_storage(const at::Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride,
                  int64_t offset) {
  const size_t needed =
      at::detail::computeStorageNbytes(size, stride, self.itemsize(), static_cast<size_t>(offset));
  if (needed > self.storage().nbytes()) resize_storage(self.storage(), needed);
}

// What PyTorch reads from a file arrives as bytes. The tensor that takes the whole of such a
// storage gives it its own dtype and shape, or every program would have to reinterpret it.
void reinterpret_bytes(const at::Tensor& self) {
  if (Trace::current() || self.scalar_type() == c10::kByte || !whole_order(self)) return;
  DeviceStorage& storage = device_storage(self);
  const Contents contents = storage.contents();
  if (!contents.buffer || contents.layout->type.dtype != stablehlo::ElementType::kU8) return;
  at::Tensor typed = at::empty_like(self);
  copy_on_device(typed, self);
  before_write(storage);
  storage.set(device_storage(typed).buffer());
}

}  // namespace

at::Tensor as_strided(const at::Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride,
                      std::optional<int64_t> storage_offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, storage_offset);
}

at::Tensor view(const at::Tensor& self, c10::IntArrayRef size) {
  return at::native::view(self, size);
}

at::Tensor reshape_alias(const at::Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride) {
  return at::native::_reshape_alias(self, size, stride);
}

at::Tensor unfold(const at::Tensor& self, int64_t dimension, int64_t size, int64_t step) {
  return at::native::unfold(self, dimension, size, step);
}

at::Tensor view_as_real(const at::Tensor& self) { return at::native::view_as_real(self); }
at::Tensor view_as_complex(const at::Tensor& self) { return at::native::view_as_complex(self); }

const at::Tensor& resize_(const at::Tensor& self, c10::IntArrayRef size,
                          std::optional<c10::MemoryFormat> memory_format) {
  at::detail::check_size_nonnegative(size);
  if (self.sizes() != size) {
    const auto strides = row_major_strides(size);
    grow_storage(self, size, strides, self.storage_offset());
    self.unsafeGetTensorImpl()->set_sizes_and_strides(size, strides);
  }
  if (memory_format) {
    TORCH_CHECK(*memory_format != c10::MemoryFormat::Preserve, "Unsupported memory format ",
                *memory_format);
    self.unsafeGetTensorImpl()->empty_tensor_restride(*memory_format);
  }
  return self;
}

at::Tensor& set_(at::Tensor& self) {
  const c10::Storage storage(c10::Storage::use_byte_size_t(), 0,
                             make_data_ptr(self.device().index()), device_allocator(), true);
  return set_storage_offset_(self, storage, 0, {0}, {});
}

at::Tensor& set_storage_(at::Tensor& self, at::Storage source) {
  const auto n = static_cast<int64_t>(source.nbytes() / self.itemsize());
  return set_storage_offset_(self, std::move(source), 0, {n}, {});
}

at::Tensor& set_storage_offset_(at::Tensor& self, at::Storage source, int64_t storage_offset,
                                c10::IntArrayRef size, c10::IntArrayRef stride) {
  TORCH_CHECK(storage_offset >= 0, "Tensor: invalid storage offset ", storage_offset);
  TORCH_CHECK(source.device_type() == kTpu, "Attempted to set the storage of a tensor on device \"",
              self.device(), "\" to a storage on different device \"", source.device(),
              "\".  This is no longer allowed; the devices must match.");
  std::vector<int64_t> strides = stride.vec();
  if (stride.empty()) {
    const auto dense = row_major_strides(size);
    strides.assign(dense.begin(), dense.end());
  }
  TORCH_CHECK(strides.size() == size.size(), "unequal size length (", size.size(),
              ") and stride length (", strides.size(), ")");
  c10::TensorImpl* impl = self.unsafeGetTensorImpl();
  if (!self.storage().is_alias_of(source)) impl->set_storage_keep_dtype(std::move(source));
  impl->set_sizes_and_strides(size, strides, storage_offset);
  grow_storage(self, size, strides, storage_offset);
  reinterpret_bytes(self);
  return self;
}

at::Tensor& set_tensor_(at::Tensor& self, const at::Tensor& source) {
  if (self.is_same(source)) return self;
  return set_storage_offset_(self, source.storage(), source.storage_offset(), source.sizes(),
                             source.strides());
}

// Lets `parameter.data = moved` keep the Parameter when its device changes to tpu, as it does for
// CUDA: Module.to then keeps parameter identity (tied weights, optimizers made before).
bool has_compatible_shallow_copy_type(const at::Tensor& self, const at::Tensor& from) {
  const auto dense = [](const at::Tensor& t) {
    return t.layout() == c10::kStrided && (t.device().is_cpu() || is_tpu(t));
  };
  return dense(self) && dense(from);
}

}  // namespace torch_tpu::eager
