#include "cache/file_bytes.h"

#include <sys/mman.h>

#include <cerrno>
#include <system_error>

namespace torch_tpu::cache {

namespace {

[[noreturn]] void fail(const char* operation) {
  throw std::system_error(errno, std::generic_category(), operation);
}

}  // namespace

Blob map_file(int descriptor, size_t size) {
  if (size == 0) return Blob();
  // Populate: all of it is read at once, for the checksum.
  void* const address = mmap(nullptr, size, PROT_READ, MAP_PRIVATE | MAP_POPULATE, descriptor, 0);
  if (address == MAP_FAILED) fail("mmap");
  std::shared_ptr<const void> owner(address, [size](void* start) { munmap(start, size); });
  return Blob(std::move(owner), {static_cast<const char*>(address), size});
}

Blob copy_file(int descriptor, size_t size) {
  const std::shared_ptr<char[]> bytes = std::make_shared_for_overwrite<char[]>(size);
  size_t done = 0;
  while (done < size) {
    const ssize_t n = pread(descriptor, bytes.get() + done, size - done, static_cast<off_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("read");
    if (n == 0) break;  // it shrank; the entry's sizes will not fit
    done += static_cast<size_t>(n);
  }
  return Blob(bytes, {bytes.get(), done});
}

void write_all(int descriptor, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = write(descriptor, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("write");
    bytes.remove_prefix(static_cast<size_t>(n));
  }
}

}  // namespace torch_tpu::cache
