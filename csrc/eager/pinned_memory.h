// Page-locked host memory, or what stands for it: host memory the device's transfers may read and
// write while Python goes on.
#pragma once

#include <c10/core/Allocator.h>

namespace torch_tpu::eager {

c10::Allocator* pinned_allocator();
// Whether `data` points into memory of pinned_allocator().
bool is_pinned(const void* data);

}  // namespace torch_tpu::eager
