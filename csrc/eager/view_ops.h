// Operators that only change how a storage is looked at.
#pragma once

#include <ATen/core/Tensor.h>

namespace torch_tpu::eager {

at::Tensor as_strided(const at::Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride,
                      std::optional<int64_t> storage_offset);
at::Tensor view(const at::Tensor& self, c10::IntArrayRef size);
at::Tensor reshape_alias(const at::Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride);
at::Tensor unfold(const at::Tensor& self, int64_t dimension, int64_t size, int64_t step);
at::Tensor view_as_real(const at::Tensor& self);
at::Tensor view_as_complex(const at::Tensor& self);
const at::Tensor& resize_(const at::Tensor& self, c10::IntArrayRef size,
                          std::optional<c10::MemoryFormat> memory_format);
at::Tensor& set_(at::Tensor& self);
at::Tensor& set_storage_(at::Tensor& self, at::Storage source);
at::Tensor& set_storage_offset_(at::Tensor& self, at::Storage source, int64_t storage_offset,
                                c10::IntArrayRef size, c10::IntArrayRef stride);
at::Tensor& set_tensor_(at::Tensor& self, const at::Tensor& source);
bool has_compatible_shallow_copy_type(const at::Tensor& self, const at::Tensor& from);

}  // namespace torch_tpu::eager
