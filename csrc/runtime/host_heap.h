// How the C library's allocator treats the memory of programs on a CPU plugin.
//
// The plugin takes memory for temporaries and results anew for each run. The allocator maps large
// pieces from the kernel and unmaps them when they are freed, so every run pays for each page of
// them again: a sixth of a training step of 54 MB.
#pragma once

namespace torch_tpu::runtime {

// From now on, pieces of up to 64 MB that are freed stay in the process, up to a gigabyte at the
// end of a heap and without limit inside of it. (The heaps of threads other than the first have no
// room for larger ones.) Does nothing where TORCH_TPU_CPU_KEEP_MEMORY is 0, and with another C
// library than glibc. Throws std::invalid_argument when the variable is neither 0 nor 1.
void keep_freed_memory();

// Gives what is free back to the system.
void release_freed_memory();

}  // namespace torch_tpu::runtime
