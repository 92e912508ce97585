// Many entries in one read-only file, mapped at once: what warms a fleet.
#pragma once

#include <filesystem>
#include <string>
#include <unordered_map>
#include <vector>

#include "cache/store.h"

namespace torch_tpu::cache {

struct ArchiveMember {
  std::string name;
  uint64_t offset = 0, size = 0;  // of the entry's bytes within the file
};

class Archive : public Store {
 public:
  // Throws StoreError when the file cannot be used, is not trusted (allow_foreign as in
  // DirectoryStore), or a member lies outside of it. A file that others may write is copied into
  // memory instead of mapped.
  Archive(const std::filesystem::path& path, const std::vector<ArchiveMember>& members,
          bool allow_foreign);

  std::optional<Blob> get(const std::string& name) override;
  bool contains(const std::string& name) override;
  void put(const std::string&, std::string_view) override;  // throws StoreError
  void remove(const std::string&) override;                 // throws StoreError
  std::vector<StoredEntry> list() override;
  std::string describe() const override { return path_; }
  bool slow() const override { return false; }

 private:
  std::string path_;
  Blob content_;
  std::unordered_map<std::string, std::string_view> members_;
};

}  // namespace torch_tpu::cache
