#include "runtime/host_heap.h"

#include "environment/environment.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace torch_tpu::runtime {

void keep_freed_memory() {
  if (!environment::flag("TORCH_TPU_CPU_KEEP_MEMORY", true)) return;
#ifdef __GLIBC__
  // The size from which pieces are mapped cannot be raised beyond 32 MB, so none is. Threads keep
  // heaps of their own: with one for all (M_ARENA_MAX) larger pieces would be kept too, but the
  // plugin's threads and Python's wait for each other in every small operator.
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
#endif
}

void release_freed_memory() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

}  // namespace torch_tpu::runtime
