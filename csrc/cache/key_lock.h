// One holder per key among all processes of a machine. A lock ends with the process that holds
// it, however that dies.
//
// POSIX record locks on one file per folder, one byte per key at an offset made from its name.
// Closing any descriptor of that file drops all locks of the process, so nothing else may open it
// and it is never closed; a forked child has none of its parent's locks.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace torch_tpu::cache {

class KeyLocks;

// Held until destroyed. Movable.
class KeyLock {
 public:
  KeyLock() = default;  // holds nothing
  KeyLock(KeyLock&& other) noexcept : locks_(std::exchange(other.locks_, nullptr)) {
    offset_ = other.offset_;
    process_ = other.process_;
  }
  KeyLock& operator=(KeyLock&& other) noexcept {
    std::swap(locks_, other.locks_);
    std::swap(offset_, other.offset_);
    std::swap(process_, other.process_);
    return *this;
  }
  ~KeyLock() { release(); }
  void release() noexcept;
  bool held() const noexcept { return locks_ != nullptr; }

 private:
  friend class KeyLocks;
  KeyLocks* locks_ = nullptr;
  int64_t offset_ = 0;
  int process_ = 0;
};

class KeyLocks {
 public:
  KeyLocks(const KeyLocks&) = delete;
  KeyLocks& operator=(const KeyLocks&) = delete;
  ~KeyLocks();
  // The locks of an existing folder, one object per process. Never destroyed. Throws StoreError
  // when the lock file can neither be opened nor created.
  static KeyLocks& of_folder(const std::filesystem::path& folder);
  // The file in that folder.
  static constexpr const char* kFileName = "locks";

  // Does not wait. nullopt: another process or thread has it. Throws StoreError when the
  // filesystem has no locks.
  std::optional<KeyLock> try_lock(const std::string& name);

 private:
  friend class KeyLock;
  struct State;
  explicit KeyLocks(std::unique_ptr<State> state);
  void unlock(int64_t offset) noexcept;

  const std::unique_ptr<State> state_;
};

}  // namespace torch_tpu::cache
