// A file per entry, in 256 folders by the first two digits of its name.
//
// Nothing is flushed to the disk: after a power failure a file may be empty or hold other bytes,
// which the entry's checksum tells. Files are written, never mapped for writing: on a full memory
// filesystem a write gives an error where a store to a mapped page ends the process.
#include "cache/directory_store.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstring>
#include <fstream>
#include <memory>
#include <system_error>

#include "cache/digest.h"
#include "cache/file_trust.h"

namespace torch_tpu::cache {

namespace {

namespace fs = std::filesystem;

constexpr uint64_t kUnknown = ~0ull;
constexpr time_t kTouchInterval = 3600;
constexpr time_t kLeftoverAge = 3600;
// Up to here copying a file is quicker than mapping it and touching its pages (measured: 40 KB 13
// against 25 us, 200 KB 38 against 88); above, the memory that mapping saves matters more.
constexpr uint64_t kLargestCopy = 1 << 20;
constexpr uint64_t kLargestForeignEntry = 4ull << 30;
constexpr std::string_view kTemporary = ".tmp-";

bool on_slow_filesystem(fs::path path) {
  struct statfs status;
  while (statfs(path.c_str(), &status) != 0) {
    if (!path.has_relative_path()) return false;
    path = path.parent_path();
  }
  switch (static_cast<uint32_t>(status.f_type)) {
    case NFS_SUPER_MAGIC:
    case SMB_SUPER_MAGIC:
    case 0xFF534D42:  // CIFS
    case 0xFE534D42:  // SMB2
    case AFS_SUPER_MAGIC:
    case CODA_SUPER_MAGIC:
    case NCP_SUPER_MAGIC:
    case V9FS_MAGIC:
    case CEPH_SUPER_MAGIC:
    case 0x65735546:  // FUSE
    case 0x0BD00BD0:  // Lustre
    case 0x47504653:  // GPFS
    case 0x19830326:  // BeeGFS
    case 0xAAD7AAEA:  // PanFS
    case 0x7461636f:  // OCFS2
    case 0x01161970:  // GFS2
      return true;
    default:
      return false;
  }
}

// Where process numbers mean the same: this boot of this machine, this process namespace.
const std::string& process_space() {
  static const std::string space = [] {
    std::string boot, text;
    std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
    std::error_code error;
    text = fs::read_symlink("/proc/self/ns/pid", error).string();
    return sha256({boot, text}).hex().substr(0, 12);
  }();
  return space;
}

std::string temporary_name() {
  static std::atomic<uint64_t> counter{0};
  return std::string(kTemporary) + process_space() + "-" + std::to_string(getpid()) + "-" +
         std::to_string(counter.fetch_add(1));
}

bool writer_is_dead(std::string_view temporary) {
  temporary.remove_prefix(kTemporary.size());
  const std::string& space = process_space();
  if (!temporary.starts_with(space + "-")) return false;  // who knows
  const long process =
      std::strtol(std::string(temporary.substr(space.size() + 1)).c_str(), nullptr, 10);
  return process > 0 && process <= INT_MAX && kill(static_cast<pid_t>(process), 0) != 0 &&
         errno == ESRCH;
}

std::string folder_of(const std::string& name) { return name.substr(0, 2); }
std::string file_of(const std::string& name) { return name.substr(0, 2) + "/" + name.substr(2); }

struct CloseDirectory {
  void operator()(DIR* directory) const { closedir(directory); }
};

// The names in a folder; empty when it is gone. Throws std::system_error.
std::vector<std::string> names_in(int at, const char* path) {
  FileDescriptor descriptor(openat(at, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!descriptor) {
    if (errno == ENOENT || errno == ENOTDIR || errno == ELOOP) return {};
    throw std::system_error(errno, std::generic_category());
  }
  const std::unique_ptr<DIR, CloseDirectory> directory(fdopendir(descriptor.get()));
  if (!directory) throw std::system_error(errno, std::generic_category());
  descriptor.release();
  std::vector<std::string> names;
  for (;;) {
    errno = 0;
    const dirent* item = readdir(directory.get());
    if (!item) break;
    names.emplace_back(item->d_name);
  }
  // Another process may remove the folder meanwhile.
  if (errno != 0 && errno != ENOENT) throw std::system_error(errno, std::generic_category());
  return names;
}

bool is_folder_name(const std::string& name) { return is_entry_name(name + std::string(62, '0')); }

}  // namespace

DirectoryStore::DirectoryStore(fs::path root, Options options)
    : root_(std::move(root)),
      options_(std::move(options)),
      slow_(on_slow_filesystem(root_)),
      counted_bytes_(kUnknown) {}

std::optional<DirectoryStore::Root> DirectoryStore::open_root(bool create) const {
  const auto open_checked = [&](int at, const fs::path& path, int flags,
                                const std::string& full) -> std::optional<Root> {
    const int open_flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC | flags;
    Root folder;
    folder.descriptor = FileDescriptor(openat(at, path.c_str(), open_flags));
    if (!folder.descriptor && errno == ENOENT && create) {
      if (mkdirat(at, path.c_str(), 0700) != 0 && errno != EEXIST) {
        throw system_error("cannot create the folder " + full, errno);
      }
      folder.descriptor = FileDescriptor(openat(at, path.c_str(), open_flags));
    }
    if (!folder.descriptor) {
      const int error = errno;
      if (error == ENOENT) return std::nullopt;
      if (error == ELOOP || (error == ENOTDIR && flags)) {
        throw untrusted(full, "it is a symbolic link or no folder");
      }
      throw system_error("cannot open the folder " + full, error);
    }
    struct stat status;
    if (fstat(folder.descriptor.get(), &status) != 0) {
      throw system_error("cannot examine the folder " + full, errno);
    }
    folder.mode = status.st_mode & 07777;
    if (const std::optional<std::string> wrong = distrust(status)) {
      if (!options_.allow_foreign) throw untrusted(full, *wrong);
      folder.foreign = true;
    }
    return folder;
  };

  if (options_.anchor.empty()) {
    if (create) {
      std::error_code error;
      fs::create_directories(root_.parent_path(), error);
      if (error) {
        throw system_error("cannot create the folder " + root_.parent_path().string(),
                           error.value());
      }
    }
    return open_checked(AT_FDCWD, root_, 0, root_.string());
  }
  std::optional<Root> folder;
  fs::path so_far = options_.anchor;
  for (const fs::path& part : root_.lexically_relative(options_.anchor)) {
    so_far /= part;
    folder = folder ? open_checked(folder->descriptor.get(), part, O_NOFOLLOW, so_far.string())
                    : open_checked(AT_FDCWD, so_far, O_NOFOLLOW, so_far.string());
    if (!folder) return std::nullopt;
  }
  return folder;
}

void DirectoryStore::create() { open_root(true); }

std::optional<Blob> DirectoryStore::read(const Root& root, const std::string& name,
                                         bool use) const {
  const auto path = [&] { return (root_ / file_of(name)).string(); };
  // Nonblocking: a pipe in the place of a file must not hold anybody up.
  const FileDescriptor file(openat(root.descriptor.get(), file_of(name).c_str(),
                                   O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!file) {
    const int error = errno;
    if (error == ENOENT) return std::nullopt;
    if (error == ELOOP) throw EntryError(EntryProblem::kUntrusted, "it is a symbolic link");
    const auto problem = [&] { return system_error("cannot open " + path(), error); };
    if (concerns_one_file(error)) throw EntryError(EntryProblem::kUnreadable, problem().what());
    throw problem();
  }
  struct stat status;
  if (fstat(file.get(), &status) != 0) throw system_error("cannot examine " + path(), errno);
  if (!S_ISREG(status.st_mode)) throw EntryError(EntryProblem::kForeign, "it is no file");
  const std::optional<std::string> wrong = distrust(status);
  if (wrong && !options_.allow_foreign) throw EntryError(EntryProblem::kUntrusted, *wrong);

  const auto size = static_cast<uint64_t>(status.st_size);
  // A file that others can change is copied, so that what was verified is what is used; so is one
  // on a network, where a page that cannot be fetched would end the process.
  const bool must_copy = wrong || root.foreign || slow_;
  if (must_copy && size > kLargestForeignEntry) {
    throw EntryError(EntryProblem::kForeign, "it is too large");
  }
  Blob bytes;
  try {
    bytes = must_copy || size <= kLargestCopy ? copy_file(file.get(), size)
                                              : map_file(file.get(), size);
  } catch (const std::system_error& error) {
    const auto problem = [&] {
      return system_error("cannot read " + path(), error.code().value());
    };
    if (concerns_one_file(error.code().value())) {
      throw EntryError(EntryProblem::kUnreadable, problem().what());
    }
    throw problem();
  }
  // The time of the last use is the file's modification time; where it cannot be set, entries
  // age from when they were written.
  if (use && time(nullptr) - status.st_mtim.tv_sec > kTouchInterval) {
    const timespec times[] = {{0, UTIME_OMIT}, {0, UTIME_NOW}};
    futimens(file.get(), times);
  }
  return bytes;
}

std::optional<Blob> DirectoryStore::get(const std::string& name) {
  const std::optional<Root> root = open_root(false);
  return root ? read(*root, name, /*use=*/true) : std::nullopt;
}

std::optional<Blob> DirectoryStore::peek(const std::string& name) {
  const std::optional<Root> root = open_root(false);
  return root ? read(*root, name, /*use=*/false) : std::nullopt;
}

bool DirectoryStore::contains(const std::string& name) {
  const std::optional<Root> root = open_root(false);
  return root &&
         faccessat(root->descriptor.get(), file_of(name).c_str(), F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

// False when a folder on the way vanished: another process is clearing.
bool DirectoryStore::try_put(const Root& root, const std::string& name,
                             std::string_view bytes) const {
  const int at = root.descriptor.get();
  const std::string folder = folder_of(name), target = file_of(name);
  const std::string temporary = folder + "/" + temporary_name();
  // In a folder that is shared on purpose, whoever may read the folder may read the entry.
  const bool shared = root.foreign;
  const mode_t file_mode = shared ? root.mode & 0644 : 0600;
  const mode_t folder_mode = shared ? root.mode : 0700;
  const auto fail = [&](const char* what, int error) {
    return system_error(what + (root_ / target).string(), error);
  };

  FileDescriptor file;
  for (int attempt = 0; attempt < 2 && !file; ++attempt) {
    if (attempt == 1) {
      if (mkdirat(at, folder.c_str(), folder_mode) == 0) {
        if (shared) fchmodat(at, folder.c_str(), folder_mode, 0);  // against the umask
      } else if (errno == ENOENT) {
        return false;
      } else if (errno != EEXIST) {
        throw fail("cannot create a folder for ", errno);
      }
    }
    file = FileDescriptor(
        openat(at, temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!file && errno != ENOENT) throw fail("cannot create a file for ", errno);
  }
  if (!file) return false;
  try {
    write_all(file.get(), bytes);
    if (shared) fchmod(file.get(), file_mode);
    // Network filesystems may report only here that there was no room.
    if (file.close() != 0) throw std::system_error(errno, std::generic_category());
    if (renameat(at, temporary.c_str(), at, target.c_str()) != 0) {
      throw std::system_error(errno, std::generic_category());
    }
  } catch (const std::system_error& error) {
    unlinkat(at, temporary.c_str(), 0);
    if (error.code().value() == ENOENT) return false;
    throw fail("cannot write ", error.code().value());
  }
  return true;
}

void DirectoryStore::put(const std::string& name, std::string_view bytes) {
  for (int attempt = 0; attempt < 5; ++attempt) {
    const std::optional<Root> root = open_root(true);
    if (root && try_put(*root, name, bytes)) {
      put_bytes_.fetch_add(bytes.size(), std::memory_order_relaxed);
      return;
    }
  }
  throw StoreError(StoreProblem::kBroken, "cannot write to " + root_.string() +
                                              ": its folders vanish as fast as they are created");
}

void DirectoryStore::remove(const std::string& name) {
  const std::optional<Root> root = open_root(false);
  if (!root) return;
  if (unlinkat(root->descriptor.get(), file_of(name).c_str(), 0) != 0 && errno != ENOENT &&
      errno != ENOTDIR) {
    throw system_error("cannot remove " + (root_ / file_of(name)).string(), errno);
  }
}

std::vector<StoredEntry> DirectoryStore::list() {
  std::vector<StoredEntry> entries;
  const std::optional<Root> root = open_root(false);
  if (!root) return entries;
  const int at = root->descriptor.get();
  try {
    for (const std::string& folder : names_in(at, ".")) {
      if (!is_folder_name(folder)) continue;
      for (const std::string& file : names_in(at, folder.c_str())) {
        struct stat status;
        std::string path = folder;
        path.append("/").append(file);
        if (!is_entry_name(folder + file) ||
            fstatat(at, path.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
          continue;
        }
        entries.push_back({folder + file, static_cast<uint64_t>(status.st_size),
                           static_cast<int64_t>(status.st_mtim.tv_sec)});
      }
    }
  } catch (const std::system_error& error) {
    throw system_error("cannot list " + root_.string(), error.code().value());
  }
  return entries;
}

PruneResult DirectoryStore::prune(uint64_t max_bytes) {
  put_bytes_.store(0, std::memory_order_relaxed);
  PruneResult result = Store::prune(max_bytes);
  counted_bytes_.store(result.bytes_kept, std::memory_order_relaxed);

  const std::optional<Root> root = open_root(false);
  if (!root) return result;
  const int at = root->descriptor.get();
  try {
    for (const std::string& folder : names_in(at, ".")) {
      if (!is_folder_name(folder)) continue;
      for (const std::string& file : names_in(at, folder.c_str())) {
        if (!file.starts_with(kTemporary)) continue;
        std::string path = folder;
        path.append("/").append(file);
        struct stat status;
        if (fstatat(at, path.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) continue;
        // A writer that still lives after so long finds its file gone and loses one entry.
        if ((writer_is_dead(file) || time(nullptr) - status.st_mtim.tv_sec > kLeftoverAge) &&
            unlinkat(at, path.c_str(), 0) == 0) {
          ++result.leftovers_removed;
        }
      }
    }
  } catch (const std::system_error& error) {
    throw system_error("cannot list " + root_.string(), error.code().value());
  }
  return result;
}

bool DirectoryStore::wants_prune(uint64_t max_bytes) const {
  const uint64_t put = put_bytes_.load(std::memory_order_relaxed);
  const uint64_t counted = counted_bytes_.load(std::memory_order_relaxed);
  if (put == 0) return false;
  if (counted == kUnknown) return true;
  // What other processes put shows only when counting again.
  return max_bytes != 0 && (counted + put > max_bytes || put > max_bytes / 16);
}

}  // namespace torch_tpu::cache
