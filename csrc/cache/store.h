// Where entries are kept, by name.
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "cache/blob.h"
#include "cache/entry.h"

namespace torch_tpu::cache {

// What is wrong with a store as a whole (not with one of its entries).
enum class StoreProblem : uint8_t {
  kReadOnly,
  kFull,
  kNoPermission,
  kUnreachable,  // a mount or a remote that does not answer
  kUntrusted,    // belongs to another user, or others may write to it
  kBroken,       // any other error of the operating system
  kCount,
};
const char* to_string(StoreProblem);

class StoreError : public std::runtime_error {
 public:
  StoreError(StoreProblem problem, const std::string& message)
      : std::runtime_error(message), problem_(problem) {}
  StoreProblem problem() const noexcept { return problem_; }

 private:
  StoreProblem problem_;
};

// One entry cannot be used as it is stored; the rest of the store is fine.
class EntryError : public std::runtime_error {
 public:
  EntryError(EntryProblem problem, const std::string& message)
      : std::runtime_error(message), problem_(problem) {}
  EntryProblem problem() const noexcept { return problem_; }

 private:
  EntryProblem problem_;
};

struct StoredEntry {
  std::string name;
  uint64_t size = 0;
  int64_t last_used = 0;  // seconds since 1970
};

struct PruneResult {
  uint64_t entries_removed = 0, bytes_removed = 0;
  uint64_t entries_kept = 0, bytes_kept = 0;
  uint64_t leftovers_removed = 0;  // files of writers that died
};

// Thread-safe, and safe between processes: a put is seen as a whole or not at all. Operations
// throw StoreError, and get() also EntryError. Names satisfy is_entry_name.
class Store {
 public:
  Store() = default;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;
  virtual ~Store() = default;

  virtual std::optional<Blob> get(const std::string& name) = 0;
  // As get, but the entry is not used: it keeps its age. For tools.
  virtual std::optional<Blob> peek(const std::string& name) { return get(name); }
  virtual bool contains(const std::string& name) { return get(name).has_value(); }
  virtual void put(const std::string& name, std::string_view bytes) = 0;
  virtual void remove(const std::string& name) = 0;  // an absent name is fine
  virtual std::vector<StoredEntry> list() = 0;

  // For messages: a path or a URL.
  virtual std::string describe() const = 0;
  // A get may take longer than a compilation: never wait for one without a limit.
  virtual bool slow() const = 0;

  // Removes the least recently used entries when there are more than `max_bytes` bytes, until
  // four fifths of it are in use; 0: no limit. Lists the store: not for hot paths.
  virtual PruneResult prune(uint64_t max_bytes);
  // Whether enough was put since the last prune() that another is due.
  virtual bool wants_prune(uint64_t /*max_bytes*/) const { return false; }
};

}  // namespace torch_tpu::cache
