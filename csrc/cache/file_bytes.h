// The bytes of an open file.
#pragma once

#include <unistd.h>

#include <string_view>
#include <utility>

#include "cache/blob.h"

namespace torch_tpu::cache {

class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int value) : value_(value) {}
  FileDescriptor(FileDescriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  ~FileDescriptor() { close(); }

  int get() const noexcept { return value_; }
  explicit operator bool() const noexcept { return value_ >= 0; }
  int release() noexcept { return std::exchange(value_, -1); }
  // What close(2) says; 0 when there is nothing to close.
  int close() noexcept { return value_ < 0 ? 0 : ::close(std::exchange(value_, -1)); }

 private:
  int value_ = -1;
};

// These throw std::system_error.
Blob map_file(int descriptor, size_t size);  // the file must never shrink while it is in use
Blob copy_file(int descriptor, size_t size);
void write_all(int descriptor, std::string_view bytes);

}  // namespace torch_tpu::cache
