#include "runtime/host_heap.h"

#include "environment/environment.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace torch_tpu::runtime {

void keep_freed_memory() {
  if (!environment::flag("TORCH_TPU_CPU_KEEP_MEMORY", true)) return;
#ifdef __GLIBC__
  // Threads with a heap of their own map what is larger than 64 MB whatever is set here, so those
  // of the plugin, which start after this, share one.
  mallopt(M_ARENA_MAX, 1);
  // The size from which pieces are mapped cannot be raised beyond 32 MB, so none is.
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
