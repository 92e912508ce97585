// Entries as files of a folder, shared by processes and, on a network filesystem, by hosts.
#pragma once

#include <atomic>
#include <filesystem>

#include "cache/file_bytes.h"
#include "cache/store.h"

namespace torch_tpu::cache {

class DirectoryStore : public Store {
 public:
  struct Options {
    // Others may own or write the folder: right only when every entry's signature is checked.
    bool allow_foreign = false;
    // Below this folder every folder on the way to the root must pass the check and be no
    // symbolic link: for roots in a folder where everybody may create files. Empty: only the root
    // is checked, and it may be a symbolic link.
    std::filesystem::path anchor;
  };

  // Touches nothing: the folder is created (0700) by the first put, and checked by every
  // operation, since it may be replaced at any time.
  explicit DirectoryStore(std::filesystem::path root) : DirectoryStore(std::move(root), {}) {}
  DirectoryStore(std::filesystem::path root, Options options);

  std::optional<Blob> get(const std::string& name) override;
  std::optional<Blob> peek(const std::string& name) override;
  bool contains(const std::string& name) override;
  void put(const std::string& name, std::string_view bytes) override;
  void remove(const std::string& name) override;
  std::vector<StoredEntry> list() override;
  std::string describe() const override { return root_.string(); }
  // The folder is on a network or FUSE filesystem.
  bool slow() const override { return slow_; }
  PruneResult prune(uint64_t max_bytes) override;
  bool wants_prune(uint64_t max_bytes) const override;

  // Creates the folder where it is missing. Throws StoreError as the first put would.
  void create();

 private:
  struct Root {
    FileDescriptor descriptor;
    unsigned mode = 0;     // permission bits
    bool foreign = false;  // others may change what is in it
  };

  // nullopt when it does not exist.
  std::optional<Root> open_root(bool create) const;
  std::optional<Blob> read(const Root& root, const std::string& name, bool use) const;
  bool try_put(const Root& root, const std::string& name, std::string_view bytes) const;

  const std::filesystem::path root_;
  const Options options_;
  const bool slow_;
  // What the folder holds as far as this process knows: the last prune's count, and what was put
  // since. kUnknown before the first prune.
  std::atomic<uint64_t> counted_bytes_, put_bytes_{0};
};

}  // namespace torch_tpu::cache
