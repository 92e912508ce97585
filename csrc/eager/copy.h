#pragma once

#include <ATen/core/Tensor.h>

namespace torch_tpu::eager {

// aten::copy_ where either side is on the device: converts dtype, broadcasts, crosses devices.
at::Tensor& copy_(at::Tensor& self, const at::Tensor& src, bool non_blocking);
// The same by a program, even where the two could share their value. Both are on one device.
void copy_on_device(at::Tensor& self, const at::Tensor& src);
// aten::_copy_from(self, dst): copies self into dst.
at::Tensor copy_from(const at::Tensor& self, const at::Tensor& dst, bool non_blocking);
at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& dst);
// aten::_local_scalar_dense: the one element, on the host. Waits.
at::Scalar local_scalar(const at::Tensor& self);
// A CPU tensor with the same values, sizes and strides (of a dense tensor). Waits.
at::Tensor to_cpu(const at::Tensor& self);

}  // namespace torch_tpu::eager
