// The memory of programs on a CPU plugin.
//
// The plugin takes memory for temporaries and results anew for each run. The C library's allocator
// maps large pieces from the kernel and unmaps them when they are freed, so every run would pay for
// each page of them again: a quarter of a training step. So a plugin's large pieces come from a
// heap of ours that keeps them, as caching allocators of other devices do.
#pragma once

namespace torch_tpu::runtime {

// From now on, memory that is freed stays in the process: the plugin's pieces of a megabyte and
// more, up to a quarter of the machine's memory; smaller ones, up to a gigabyte at the end of each
// thread's heap. `inside_plugin` is an address in the plugin's library. Does nothing where
// TORCH_TPU_CPU_KEEP_MEMORY is 0; with another C library than glibc, or a plugin with an allocator
// of its own, less or nothing is kept. Throws std::invalid_argument when the variable is neither 0
// nor 1.
void keep_freed_memory(const void* inside_plugin);

// Gives what is free back to the system.
void release_freed_memory();

}  // namespace torch_tpu::runtime
