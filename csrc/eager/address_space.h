// The addresses that storages show to PyTorch.
#pragma once

#include <cstdint>

namespace torch_tpu::eager {

class DeviceStorage;

// A range of addresses for a storage, unique while it is kept. Nothing is
// there: addresses tell storages apart and order views inside one, as
// data_ptr() is used by libraries. Thread-safe.
uintptr_t take_address(DeviceStorage* storage);
void give_address_back(uintptr_t address) noexcept;

// The storage whose range begins at `address`; null if there is none. PyTorch
// makes tensors of bare addresses when it writes storages to files and when it
// exchanges tensors by DLPack.
DeviceStorage* storage_at(uintptr_t address) noexcept;

}  // namespace torch_tpu::eager
