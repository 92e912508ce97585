// How the C library's allocator treats the memory of programs on a CPU plugin.
//
// The plugin takes memory for temporaries and results anew for each run. The allocator maps large
// pieces from the kernel and unmaps them when they are freed, so every run pays for each page of
// them again: a sixth of a training step of 54 MB.
#pragma once

namespace torch_tpu::runtime {

// From now on, what is freed stays in the process, up to a gigabyte at the end of the heap and
// without limit inside of it. To be called before the plugin starts its threads. Does nothing where
// TORCH_TPU_CPU_KEEP_MEMORY is 0, and with another C library than glibc. Throws Error when the
// variable is neither 0 nor 1.
void keep_freed_memory();

// Gives what is free back to the system.
void release_freed_memory();

}  // namespace torch_tpu::runtime
