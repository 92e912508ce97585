#include "cache/archive.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <system_error>

#include "cache/file_bytes.h"
#include "cache/file_trust.h"

namespace torch_tpu::cache {

Archive::Archive(const std::filesystem::path& path, const std::vector<ArchiveMember>& members,
                 bool allow_foreign)
    : path_(path.string()) {
  const FileDescriptor file(open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  struct stat status;
  if (!file || fstat(file.get(), &status) != 0) throw system_error("cannot open " + path_, errno);
  if (!S_ISREG(status.st_mode)) {
    throw StoreError(StoreProblem::kBroken, "cannot use " + path_ + ": it is no file");
  }
  const std::optional<std::string> wrong = distrust(status);
  if (wrong && !allow_foreign) throw untrusted(path_, *wrong);
  const auto size = static_cast<size_t>(status.st_size);
  try {
    content_ = wrong ? copy_file(file.get(), size) : map_file(file.get(), size);
  } catch (const std::system_error& error) {
    throw system_error("cannot read " + path_, error.code().value());
  }
  for (const ArchiveMember& member : members) {
    if (!is_entry_name(member.name) || member.offset > content_.size() ||
        member.size > content_.size() - member.offset) {
      throw StoreError(StoreProblem::kBroken,
                       "cannot use " + path_ + ": its member '" + member.name +
                           "' is no entry of a compilation cache or lies outside of the file");
    }
    members_.emplace(member.name, content_.bytes().substr(member.offset, member.size));
  }
}

std::optional<Blob> Archive::get(const std::string& name) {
  const auto found = members_.find(name);
  return found == members_.end() ? std::nullopt : std::optional(content_.part(found->second));
}

bool Archive::contains(const std::string& name) { return members_.contains(name); }

void Archive::put(const std::string&, std::string_view) {
  throw StoreError(StoreProblem::kReadOnly, path_ + ": an archive cannot be changed");
}

void Archive::remove(const std::string&) {
  throw StoreError(StoreProblem::kReadOnly, path_ + ": an archive cannot be changed");
}

std::vector<StoredEntry> Archive::list() {
  std::vector<StoredEntry> entries;
  for (const auto& [name, bytes] : members_) entries.push_back({name, bytes.size(), 0});
  return entries;
}

}  // namespace torch_tpu::cache
