#include "cache/key_lock.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <memory>
#include <set>

#include "cache/file_bytes.h"
#include "cache/file_trust.h"
#include "cache/fork_safe_mutex.h"
#include "cache/store.h"

namespace torch_tpu::cache {

struct KeyLocks::State {
  explicit State(int file) : descriptor(file), process(getpid()) {}

  const int descriptor;
  ForkSafeMutex mutex;
  // Guarded by the mutex: what this process holds, since POSIX locks do not exclude its own
  // threads. A forked child has this set but not the locks.
  std::set<int64_t> held;
  pid_t process;

  void forget_after_fork() {
    if (process == getpid()) return;
    held.clear();
    process = getpid();
  }
};

namespace {

using FileIdentity = std::pair<dev_t, ino_t>;

// Never destroyed, like the locks it holds.
struct AllLocks {
  ForkSafeMutex mutex;
  std::map<FileIdentity, std::unique_ptr<KeyLocks>> by_file;  // guarded by the mutex

  static AllLocks& get() {
    static AllLocks* all = std::make_unique<AllLocks>().release();
    return *all;
  }
};

struct flock byte_lock(short type, int64_t offset) {
  struct flock lock{};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = offset;
  lock.l_len = 1;
  return lock;
}

int64_t offset_of(const std::string& name) {
  return static_cast<int64_t>(std::stoull(name.substr(0, 16), nullptr, 16) >> 2);
}

}  // namespace

KeyLocks::KeyLocks(std::unique_ptr<State> state) : state_(std::move(state)) {}

KeyLocks::~KeyLocks() = default;

KeyLocks& KeyLocks::of_folder(const std::filesystem::path& folder) {
  const std::string path = folder / kFileName;
  AllLocks& all = AllLocks::get();
  const auto known = [&](const struct stat& status) -> KeyLocks* {
    const std::lock_guard lock(all.mutex);
    const auto found = all.by_file.find({status.st_dev, status.st_ino});
    return found == all.by_file.end() ? nullptr : found->second.get();
  };
  // Looked up before it is opened: a second descriptor could never be closed again.
  struct stat status;
  if (lstat(path.c_str(), &status) == 0) {
    if (KeyLocks* locks = known(status)) return *locks;
  }
  FileDescriptor file(
      open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR));
  if (!file || fstat(file.get(), &status) != 0) {
    throw system_error("cannot open the lock file " + path, errno);
  }
  if (KeyLocks* locks = known(status)) {
    // Another thread was first. Closing this descriptor would drop its locks.
    file.release();
    return *locks;
  }
  // Not make_unique: the constructor is private. Outlives the lock: see ForkSafeMutex.
  auto state = std::make_unique<State>(file.release());
  const std::lock_guard lock(all.mutex);
  std::unique_ptr<KeyLocks>& locks = all.by_file[{status.st_dev, status.st_ino}];
  if (!locks) locks.reset(new KeyLocks(std::move(state)));
  return *locks;
}

std::optional<KeyLock> KeyLocks::try_lock(const std::string& name) {
  const int64_t offset = offset_of(name);
  {
    const std::lock_guard lock(state_->mutex);
    state_->forget_after_fork();
    if (!state_->held.insert(offset).second) return std::nullopt;
  }
  struct flock request = byte_lock(F_WRLCK, offset);
  int error = 0;
  while (fcntl(state_->descriptor, F_SETLK, &request) != 0) {
    error = errno;
    if (error != EINTR) break;
    error = 0;
  }
  if (error != 0) {
    const std::lock_guard lock(state_->mutex);
    state_->held.erase(offset);
    if (error == EACCES || error == EAGAIN) return std::nullopt;
    throw system_error("cannot lock a key of the compilation cache", error);
  }
  KeyLock held;
  held.locks_ = this;
  held.offset_ = offset;
  held.process_ = getpid();
  return held;
}

void KeyLocks::unlock(int64_t offset) noexcept {
  struct flock request = byte_lock(F_UNLCK, offset);
  fcntl(state_->descriptor, F_SETLK, &request);
  const std::lock_guard lock(state_->mutex);
  state_->held.erase(offset);
}

void KeyLock::release() noexcept {
  KeyLocks* const locks = std::exchange(locks_, nullptr);
  // A copy in a forked child is not the lock.
  if (locks && process_ == getpid()) locks->unlock(offset_);
}

}  // namespace torch_tpu::cache
