#include "runtime/host_heap.h"

#include <cstdlib>
#include <string>
#include <string_view>

#include "pjrt/error.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace torch_tpu::runtime {

namespace {

constexpr const char* kVariable = "TORCH_TPU_CPU_KEEP_MEMORY";

bool wanted() {
  const char* const value = std::getenv(kVariable);
  if (!value || !*value || std::string_view(value) == "1") return true;
  if (std::string_view(value) == "0") return false;
  throw pjrt::Error(3 /* invalid argument */,
                    std::string(kVariable) + ": expected 0 or 1, got '" + value + "'");
}

}  // namespace

void keep_freed_memory() {
  if (!wanted()) return;
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
