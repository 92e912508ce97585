#pragma once

namespace torch_tpu::eager {

// Registers the accelerator hooks with PyTorch. Call once.
void register_hooks();

}  // namespace torch_tpu::eager
