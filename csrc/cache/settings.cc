#include "cache/settings.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <system_error>

#include "cache/file_bytes.h"
#include "environment/environment.h"

namespace torch_tpu::cache {

namespace {

namespace fs = std::filesystem;

constexpr const char* kTier2 = "TORCH_TPU_TIER2_COMPILATION_CACHE";
constexpr const char* kTier3 = "TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT";
constexpr const char* kTier1Size = "TORCH_TPU_TIER1_COMPILATION_CACHE_SIZE";
constexpr const char* kTier2Size = "TORCH_TPU_TIER2_COMPILATION_CACHE_SIZE";
constexpr const char* kTier3Size = "TORCH_TPU_TIER3_COMPILATION_CACHE_SIZE";
constexpr const char* kKeyFile = "TORCH_TPU_CACHE_HMAC_KEY_FILE";
constexpr const char* kSharedMemory = "/dev/shm";
constexpr size_t kShortestKey = 16;
constexpr size_t kLongestKey = 1 << 16;

[[noreturn]] void refuse(const std::string& variable, const std::string& what) {
  throw std::invalid_argument(variable + ": " + what);
}

void read_machine(Settings& settings) {
  std::string name = environment::text(kTier2);
  if (name == "disabled") return;
  if (name.empty()) name = "default";
  const bool plain = std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  });
  if (!plain || name == "." || name == ".." || name.size() > 100) {
    refuse(kTier2, "expected 'disabled' or a name of letters, digits, '.', '_' and '-', got '" +
                       name + "'");
  }
  struct stat status;
  if (stat(kSharedMemory, &status) != 0 || !S_ISDIR(status.st_mode)) {
    settings.notes.push_back(
        "this machine has no /dev/shm: processes share compiled programs "
        "only through the persistent cache (" +
        std::string(kTier2) + "=disabled silences this)");
    return;
  }
  settings.machine_anchor = kSharedMemory;
  settings.machine_folder =
      fs::path(kSharedMemory) / ("torch_tpu-" + std::to_string(geteuid())) / name;
  struct statvfs size;
  if (statvfs(kSharedMemory, &size) == 0) {
    const uint64_t total = static_cast<uint64_t>(size.f_blocks) * size.f_frsize;
    // At least one byte: zero means no limit.
    settings.machine_bytes = std::clamp<uint64_t>(total / 4, 1, settings.machine_bytes);
  }
}

void read_persistent(Settings& settings) {
  std::string root = environment::text(kTier3);
  if (root == "disabled") return;
  if (root.empty()) {
    const std::string xdg = environment::text("XDG_CACHE_HOME"), home = environment::text("HOME");
    // The specification of XDG_CACHE_HOME wants relative paths ignored.
    if (fs::path(xdg).is_absolute()) {
      root = fs::path(xdg) / "torch_tpu";
    } else if (!home.empty()) {
      root = fs::path(home) / ".cache" / "torch_tpu";
    } else {
      settings.notes.push_back(
          "neither HOME nor XDG_CACHE_HOME is set: compiled programs are not "
          "kept (" +
          std::string(kTier3) +
          " names a folder or, with 'disabled', "
          "silences this)");
      return;
    }
  }
  constexpr std::string_view kFile = "file://";
  if (root.starts_with(kFile)) root = root.substr(kFile.size());
  if (root.starts_with("~/")) {
    const std::string home = environment::text("HOME");
    if (home.empty()) refuse(kTier3, "'" + root + "' needs HOME, which is not set");
    root = home + root.substr(1);
  }
  settings.persistent_root = root;
  // The program may change its working directory.
  if (!settings.persistent_is_remote()) {
    std::string absolute = fs::absolute(root).lexically_normal().string();
    if (absolute.size() > 1 && absolute.back() == '/') absolute.pop_back();
    settings.persistent_root = absolute;
  }
}

std::string read_key(const std::string& path) {
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  struct stat status;
  if (!file || fstat(file.get(), &status) != 0) {
    refuse(kKeyFile, "cannot open '" + path + "': " + std::generic_category().message(errno));
  }
  if (!S_ISREG(status.st_mode)) refuse(kKeyFile, "'" + path + "' is no file");
  // The group may read: that is how secrets are handed to containers.
  if (status.st_mode & (S_IROTH | S_IWOTH | S_IWGRP)) {
    refuse(kKeyFile, "'" + path + "' can be read or changed by others; use chmod 600");
  }
  if (status.st_size > static_cast<off_t>(kLongestKey)) {
    refuse(kKeyFile, "'" + path + "' is too long for a key");
  }
  std::string key;
  try {
    key = copy_file(file.get(), static_cast<size_t>(status.st_size)).bytes();
  } catch (const std::system_error& error) {
    refuse(kKeyFile, "cannot read '" + path + "': " + error.code().message());
  }
  if (!key.empty() && key.back() == '\n') key.pop_back();  // an editor's
  if (key.size() < kShortestKey) {
    refuse(kKeyFile, "expected at least " + std::to_string(kShortestKey) + " bytes in '" + path +
                         "', got " + std::to_string(key.size()));
  }
  return key;
}

}  // namespace

Settings Settings::from_environment() {
  Settings settings;
  read_machine(settings);
  read_persistent(settings);
  const auto size = [](const char* variable, uint64_t& bytes) {
    bytes = environment::bytes(variable).value_or(bytes);
  };
  size(kTier1Size, settings.memory_bytes);
  size(kTier2Size, settings.machine_bytes);
  size(kTier3Size, settings.persistent_bytes);
  if (const std::string path = environment::text(kKeyFile); !path.empty()) {
    settings.signing_key = read_key(path);
  }
  return settings;
}

}  // namespace torch_tpu::cache
