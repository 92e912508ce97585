#include "runtime/refused_program.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <vector>

#include "cache/file_bytes.h"

namespace torch_tpu::runtime {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "torch_tpu_failed_", kSuffix = ".mlir";
constexpr size_t kMaxFiles = 10;

// "torch_tpu_failed_PROCESS_NUMBER.mlir"
bool is_ours(std::string_view name) {
  if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) return false;
  name.remove_prefix(kPrefix.size());
  name.remove_suffix(kSuffix.size());
  return name.find_first_not_of("0123456789_") == std::string_view::npos;
}

// A file that was not there, under the next name; another user's may be in the way.
cache::FileDescriptor create_file(const fs::path& folder, fs::path& path) {
  static std::atomic<int> counter{0};
  for (;;) {
    path = folder / (std::string(kPrefix) + std::to_string(getpid()) + "_" +
                     std::to_string(counter++) + std::string(kSuffix));
    cache::FileDescriptor file(
        open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (file || errno != EEXIST) return file;
  }
}

void remove_old_files(const fs::path& folder) {
  std::vector<std::pair<fs::file_time_type, fs::path>> found;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (!is_ours(entry->path().filename().string())) continue;
    std::error_code gone;  // another process removes it
    const auto time = entry->last_write_time(gone);
    if (!gone) found.emplace_back(time, entry->path());
  }
  if (found.size() <= kMaxFiles) return;
  std::sort(found.begin(), found.end());
  found.resize(found.size() - kMaxFiles);
  for (const auto& [time, path] : found) fs::remove(path, error);  // unless it is another user's
}

}  // namespace

std::optional<std::string> keep_refused_program(std::string_view program) {
  std::error_code error;
  const fs::path folder = fs::temp_directory_path(error);
  if (error) return std::nullopt;
  fs::path path;
  const cache::FileDescriptor file = create_file(folder, path);
  if (!file) return std::nullopt;
  try {
    cache::write_all(file.get(), program);
  } catch (const std::system_error&) {
    fs::remove(path, error);
    return std::nullopt;
  }
  remove_old_files(folder);
  return path.string();
}

}  // namespace torch_tpu::runtime
