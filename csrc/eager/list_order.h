// Operators that write a list: `_foreach_mul_`, `_fused_adam_`, `split_copy(out=)`. PyTorch works
// on one entry after the other, so an entry sees what was written before it where they share
// memory. A program computes all entries from what was there before the call. That is the same,
// unless an entry has memory that an earlier one writes.
#pragma once

#include <ATen/core/ivalue.h>

#include <span>

#include "eager/operator_info.h"

namespace torch_tpu::eager {

enum class ListOrder : uint8_t {
  kFree,     // all entries can be computed at once
  kEntries,  // entry i comes after those before it, from entry i of each list
  kParts,    // part i of the argument is copied to entry i after those before it
};
ListOrder list_order(const OperatorInfo& info, std::span<const c10::IValue> arguments);

// Refuses entries that PyTorch's in-place operators refuse: with several elements in one place, or
// that overlap in part with what they are computed from.
void check_entries(const OperatorInfo& info, std::span<const c10::IValue> arguments);

}  // namespace torch_tpu::eager
