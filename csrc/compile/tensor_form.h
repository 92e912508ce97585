// What a tensor is over its storage, kept while there is no such tensor.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "runtime/device_buffer.h"

namespace torch_tpu::compile {

struct TensorForm {
  TensorForm() = default;
  explicit TensorForm(const at::Tensor& t);

  bool is_of(const at::Tensor& t) const;

  // A tensor of this form over a storage that is there, or over a new one of `nbytes` bytes, which
  // is unfilled when `buffer` is null.
  at::Tensor over(const c10::Storage& storage) const;
  at::Tensor over_new_storage(runtime::DeviceBufferPtr buffer, size_t nbytes, int device) const;

  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<int64_t> sizes, strides;
  int64_t offset = 0;
  bool conj = false, neg = false;
};

// A change of one is seen in the other's version, which autograd compares with that of what it
// saved.
void share_version(const at::Tensor& t, const at::Tensor& same);

// A storage of results of a program, made anew at every run.
struct NewStorage {
  int output = -1;  // -1: unfilled
  size_t nbytes = 0;
  bool shared = false;  // by several results
};

}  // namespace torch_tpu::compile
