#include "runtime/host_heap.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#include "environment/environment.h"
#include "runtime/block_heap.h"
#include "runtime/redirected_imports.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace torch_tpu::runtime {

namespace {

// Smaller pieces stay with the C library, where each thread has a heap of its own: those of small
// operators must not wait for each other.
constexpr size_t kLarge = 1 << 20;
constexpr size_t kMaxAlignment = 4096;
// Of the machine's memory, what may be kept: the rest is for others.
constexpr size_t kKeptShare = 4;

// Where the plugin's large pieces are. Made once, before its functions are redirected, and never
// destroyed: the plugin's threads end after everything else.
BlockHeap* large_pieces = nullptr;

void* allocate_large(size_t alignment, size_t bytes) {
  if (bytes < kLarge || alignment > kMaxAlignment) return nullptr;
  return large_pieces->allocate(bytes);
}

// What the plugin calls instead of the C library's functions of these names.

void plugin_free(void* piece) {
  if (large_pieces->contains(piece)) {
    large_pieces->free(piece);
  } else {
    std::free(piece);
  }
}

void* plugin_realloc(void* piece, size_t bytes) {
  if (!large_pieces->contains(piece)) return std::realloc(piece, bytes);
  void* const moved = std::malloc(bytes);
  if (moved != nullptr) {
    std::memcpy(moved, piece, std::min(bytes, large_pieces->size_of(piece)));
    large_pieces->free(piece);
  }
  return moved;
}

void* plugin_aligned_alloc(size_t alignment, size_t bytes) {
  if (void* const piece = allocate_large(alignment, bytes)) return piece;
  return std::aligned_alloc(alignment, bytes);
}

int plugin_posix_memalign(void** result, size_t alignment, size_t bytes) {
  if (void* const piece = allocate_large(alignment, bytes)) {
    *result = piece;
    return 0;
  }
  return posix_memalign(result, alignment, bytes);
}

size_t memory_of_machine() {
  return static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

// The addresses that are reserved would count.
bool addresses_are_limited() {
  rlimit limit{};
  return getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur != RLIM_INFINITY;
}

void keep_large_pieces(const void* inside_plugin) {
  if (large_pieces != nullptr || addresses_are_limited()) return;
  try {
    // More addresses than memory, so that there is room beside blocks that are in the way.
    const size_t memory = memory_of_machine();
    large_pieces = std::make_unique<BlockHeap>(4 * memory, memory / kKeptShare).release();
  } catch (const std::bad_alloc&) {
    return;  // the system reserves none without memory for them
  }
  // free() first: what the others give out must not meet the C library's.
  const Redirection functions[] = {
      {"free", reinterpret_cast<void*>(plugin_free)},
      {"realloc", reinterpret_cast<void*>(plugin_realloc)},
      {"aligned_alloc", reinterpret_cast<void*>(plugin_aligned_alloc)},
      {"posix_memalign", reinterpret_cast<void*>(plugin_posix_memalign)},
  };
  redirect_imports(inside_plugin, functions);
}

}  // namespace

void keep_freed_memory(const void* inside_plugin) {
  if (!environment::flag("TORCH_TPU_CPU_KEEP_MEMORY", true)) return;
#ifdef __GLIBC__
  // The size from which pieces are mapped cannot be raised beyond 32 MB, so none is. Threads keep
  // heaps of their own: with one for all (M_ARENA_MAX) the plugin's threads and Python's would wait
  // for each other in every small operator.
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
#endif
  keep_large_pieces(inside_plugin);
}

void release_freed_memory() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
  if (large_pieces != nullptr) large_pieces->trim();
}

}  // namespace torch_tpu::runtime
