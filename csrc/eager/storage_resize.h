#pragma once

#include <c10/core/Storage.h>

namespace torch_tpu::eager {

// Changes a storage's size in bytes, keeping what fits. Growing fills with zeros what is read
// before it is written; size 0 gives the device memory back (FSDP frees parameters this way).
void resize_storage(const c10::Storage& storage, size_t nbytes);

}  // namespace torch_tpu::eager
