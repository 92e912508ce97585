#include "compile/tensor_form.h"

#include "eager/device_storage.h"
#include "runtime/block_pool.h"

namespace torch_tpu::compile {

namespace {

at::Tensor with_lazy_bits(at::Tensor t, const TensorForm& form) {
  if (form.conj) t.unsafeGetTensorImpl()->_set_conj(true);
  if (form.neg) t.unsafeGetTensorImpl()->_set_neg(true);
  return t;
}

}  // namespace

TensorForm::TensorForm(const at::Tensor& t)
    : dtype(t.scalar_type()),
      sizes(t.sizes().vec()),
      strides(t.strides().vec()),
      offset(t.storage_offset()),
      conj(t.is_conj()),
      neg(t.is_neg()) {}

bool TensorForm::is_of(const at::Tensor& t) const {
  return t.scalar_type() == dtype && t.sizes() == sizes && t.strides() == strides &&
         t.storage_offset() == offset && t.is_conj() == conj && t.is_neg() == neg;
}

at::Tensor TensorForm::over(const c10::Storage& storage) const {
  at::Tensor t = at::detail::make_tensor<runtime::Pooled<c10::TensorImpl>>(
      c10::Storage(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      c10::scalarTypeToTypeMeta(dtype));
  t.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  return with_lazy_bits(std::move(t), *this);
}

at::Tensor TensorForm::over_new_storage(runtime::DeviceBufferPtr buffer, size_t nbytes,
                                        int device) const {
  return with_lazy_bits(
      eager::make_tensor(std::move(buffer), dtype, sizes, strides, offset, nbytes, device), *this);
}

void share_version(const at::Tensor& t, const at::Tensor& same) {
  if (!t.is_inference() && !same.is_inference()) {
    t.unsafeGetTensorImpl()->set_version_counter(same.unsafeGetTensorImpl()->version_counter());
  }
}

}  // namespace torch_tpu::compile
