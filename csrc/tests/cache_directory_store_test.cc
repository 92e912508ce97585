// A folder of entries: what it refuses, and what it survives.
#include <fcntl.h>
#include <sys/stat.h>

#include <thread>

#include "cache/directory_store.h"
#include "tests/cache_test_support.h"

namespace torch_tpu::cache {
namespace {

using testing::as_ordinary_user;
using testing::CacheTest;
using testing::write_file;
namespace fs = std::filesystem;

class CacheDirectoryStore : public CacheTest {
 protected:
  static std::string name(int i) { return testing::program_key(std::to_string(i)).name(); }
  fs::path file(const std::string& name) const {
    return root_ / "store" / name.substr(0, 2) / name.substr(2);
  }
  static std::optional<StoreProblem> problem_of(const std::function<void()>& operation) {
    try {
      operation();
      return std::nullopt;
    } catch (const StoreError& error) {
      EXPECT_STRNE(error.what(), "");
      return error.problem();
    }
  }
  static std::optional<EntryProblem> entry_problem_of(DirectoryStore& store,
                                                      const std::string& name) {
    try {
      store.get(name);
      return std::nullopt;
    } catch (const EntryError& error) {
      return error.problem();
    }
  }
  static mode_t mode_of(const fs::path& path) {
    struct stat status;
    EXPECT_EQ(lstat(path.c_str(), &status), 0) << path;
    return status.st_mode & 07777;
  }
  void set_age(const std::string& name, int seconds) const {
    const time_t when = time(nullptr) - seconds;
    const timespec times[] = {{when, 0}, {when, 0}};
    ASSERT_EQ(utimensat(AT_FDCWD, file(name).c_str(), times, 0), 0);
  }
};

TEST_F(CacheDirectoryStore, PeekingIsNoUse) {
  DirectoryStore store(root_ / "store");
  store.put(name(1), "one");
  set_age(name(1), 86400);
  const int64_t then = store.list().at(0).last_used;
  EXPECT_EQ(store.peek(name(1))->bytes(), "one");
  EXPECT_FALSE(store.peek(name(2)));
  EXPECT_EQ(store.list().at(0).last_used, then);
  EXPECT_EQ(store.get(name(1))->bytes(), "one");
  EXPECT_GT(store.list().at(0).last_used, then + 80000);
}

TEST_F(CacheDirectoryStore, GivesBackWhatWasPut) {
  DirectoryStore store(root_ / "store");
  EXPECT_FALSE(store.get(name(1)));
  EXPECT_FALSE(fs::exists(root_ / "store")) << "reading creates nothing";
  store.put(name(1), "one");
  store.put(name(2), "");
  store.put(name(1), "new");
  EXPECT_EQ(store.get(name(1))->bytes(), "new");
  EXPECT_EQ(store.get(name(2))->bytes(), "");
  EXPECT_TRUE(store.contains(name(1)));
  EXPECT_FALSE(store.contains(name(3)));
  EXPECT_EQ(store.list().size(), 2u);
  EXPECT_EQ(files(root_ / "store").size(), 2u) << "nothing but entries stays behind";
  store.remove(name(1));
  store.remove(name(1));
  EXPECT_FALSE(store.get(name(1)));
  EXPECT_FALSE(store.slow()) << "the temporary folder is expected on a local filesystem";
}

TEST_F(CacheDirectoryStore, BytesInUseOutliveTheFile) {
  DirectoryStore store(root_ / "store");
  for (const size_t size : {1'000, 3'000'000}) {  // copied, mapped
    store.put(name(1), std::string(size, 'x'));
    const Blob blob = *store.get(name(1));
    store.put(name(1), "short");
    store.remove(name(1));
    EXPECT_EQ(blob.bytes(), std::string(size, 'x'));
  }
}

TEST_F(CacheDirectoryStore, OthersGetNoPermissions) {
  const mode_t before = umask(0);
  DirectoryStore store(root_ / "store");
  store.put(name(1), "one");
  umask(before);
  EXPECT_EQ(mode_of(root_ / "store"), 0700u);
  EXPECT_EQ(mode_of(file(name(1)).parent_path()), 0700u);
  EXPECT_EQ(mode_of(file(name(1))), 0600u);
}

TEST_F(CacheDirectoryStore, AFolderThatOthersMayWriteIsRefused) {
  DirectoryStore store(root_ / "store");
  store.put(name(1), "one");
  for (const mode_t mode : {0720, 0702, 01777}) {
    ASSERT_EQ(chmod((root_ / "store").c_str(), mode), 0);
    EXPECT_EQ(problem_of([&] { store.get(name(1)); }), StoreProblem::kUntrusted);
    EXPECT_EQ(problem_of([&] { store.put(name(2), "two"); }), StoreProblem::kUntrusted);
    EXPECT_EQ(problem_of([&] { store.list(); }), StoreProblem::kUntrusted);
  }
  try {
    store.get(name(1));
  } catch (const StoreError& error) {
    const std::string what = error.what();
    EXPECT_NE(what.find("mode 1777"), std::string::npos) << what;
    EXPECT_NE(what.find("chmod"), std::string::npos) << what;
  }
  // Where signatures are checked, others may take part.
  DirectoryStore shared(root_ / "store", {.allow_foreign = true, .anchor = {}});
  EXPECT_EQ(shared.get(name(1))->bytes(), "one");
  shared.put(name(3), "three");
  EXPECT_EQ(mode_of(file(name(3))), 0644u) << "as the folder's mode says";
  EXPECT_EQ(mode_of(file(name(3)).parent_path()), 01777u);
  ASSERT_EQ(chmod((root_ / "store").c_str(), 0755), 0);
  EXPECT_EQ(store.get(name(1))->bytes(), "one") << "others may look";
}

TEST_F(CacheDirectoryStore, AFolderOfAnotherUserIsRefused) {
  // Root gives one away; anybody else finds the system's folders to be root's.
  fs::path folder = "/usr";
  if (geteuid() == 0) {
    folder = root_ / "theirs";
    fs::create_directory(folder);
    ASSERT_EQ(chown(folder.c_str(), testing::kNobody, testing::kNobody), 0);
  }
  DirectoryStore store(folder);
  EXPECT_EQ(problem_of([&] { store.get(name(1)); }), StoreProblem::kUntrusted);
  EXPECT_EQ(problem_of([&] { store.put(name(1), "one"); }), StoreProblem::kUntrusted);
}

TEST_F(CacheDirectoryStore, EntriesThatOthersCouldHaveWrittenAreRefused) {
  DirectoryStore store(root_ / "store");
  store.put(name(1), "one");
  ASSERT_EQ(chmod(file(name(1)).c_str(), 0666), 0);
  EXPECT_EQ(entry_problem_of(store, name(1)), EntryProblem::kUntrusted);
  store.put(name(2), "two");
  fs::create_symlink(file(name(2)), root_ / "link");
  store.put(name(3), "three");
  fs::rename(root_ / "link", file(name(3)));
  EXPECT_EQ(entry_problem_of(store, name(3)), EntryProblem::kUntrusted);
  if (geteuid() == 0) {  // only root can give files away
    ASSERT_EQ(chown(file(name(2)).c_str(), testing::kNobody, testing::kNobody), 0);
    EXPECT_EQ(entry_problem_of(store, name(2)), EntryProblem::kUntrusted);
  }
  // The bad ones can be removed and replaced.
  store.remove(name(3));
  store.put(name(3), "new");
  EXPECT_EQ(store.get(name(3))->bytes(), "new");
}

TEST_F(CacheDirectoryStore, OddThingsInThePlaceOfFiles) {
  DirectoryStore store(root_ / "store");
  store.put(name(1), "one");
  fs::remove(file(name(1)));
  ASSERT_EQ(mkfifo(file(name(1)).c_str(), 0600), 0);
  EXPECT_EQ(entry_problem_of(store, name(1)), EntryProblem::kForeign) << "and does not wait";
  fs::remove(file(name(1)));
  fs::create_directory(file(name(1)));
  EXPECT_EQ(entry_problem_of(store, name(1)), EntryProblem::kForeign);
  write_file(root_ / "store" / "stray", "");
  write_file(root_ / "store" / name(1).substr(0, 2) / "stray", "");
  EXPECT_EQ(store.list().size(), 1u);
  // A file where the folder of the first two digits should be.
  int other = 2;
  while (name(other).substr(0, 2) == name(1).substr(0, 2)) ++other;
  write_file(file(name(other)).parent_path(), "");
  EXPECT_TRUE(problem_of([&] { store.put(name(other), "x"); }));
  store.list();
}

TEST_F(CacheDirectoryStore, BelowAnAnchorNothingIsFollowed) {
  const fs::path anchor = root_ / "shm", mine = anchor / "mine";
  fs::create_directory(anchor);
  ASSERT_EQ(chmod(anchor.c_str(), 01777), 0);
  DirectoryStore store(mine / "default", {.allow_foreign = false, .anchor = anchor});
  store.put(name(1), "one");
  EXPECT_EQ(store.get(name(1))->bytes(), "one");
  EXPECT_EQ(mode_of(mine), 0700u);
  ASSERT_EQ(chmod(mine.c_str(), 0777), 0);
  EXPECT_EQ(problem_of([&] { store.get(name(1)); }), StoreProblem::kUntrusted);
  ASSERT_EQ(chmod(mine.c_str(), 0700), 0);
  fs::rename(mine, root_ / "elsewhere");
  fs::create_directory_symlink(root_ / "elsewhere", mine);
  EXPECT_EQ(problem_of([&] { store.get(name(1)); }), StoreProblem::kUntrusted);
  EXPECT_EQ(problem_of([&] { store.put(name(1), ""); }), StoreProblem::kUntrusted);
  // The user's own choice of a root may be a link.
  fs::create_directory_symlink(root_ / "elsewhere" / "default", root_ / "link");
  EXPECT_EQ(DirectoryStore(root_ / "link").get(name(1))->bytes(), "one");
}

TEST_F(CacheDirectoryStore, WithoutPermission) {
  as_ordinary_user(root_, [&] {
    DirectoryStore store(root_ / "store");
    store.put(name(1), "one");
    ASSERT_EQ(chmod((root_ / "store").c_str(), 0500), 0);
    ASSERT_EQ(chmod(file(name(1)).parent_path().c_str(), 0500), 0);
    EXPECT_EQ(store.get(name(1))->bytes(), "one") << "reading is still fine";
    EXPECT_EQ(problem_of([&] { store.put(name(1), "two"); }), StoreProblem::kNoPermission);
    EXPECT_EQ(problem_of([&] { store.put(name(2), "two"); }), StoreProblem::kNoPermission);
    EXPECT_EQ(problem_of([&] { store.remove(name(1)); }), StoreProblem::kNoPermission);
    ASSERT_EQ(chmod(file(name(1)).c_str(), 0200), 0);
    EXPECT_EQ(entry_problem_of(store, name(1)), EntryProblem::kUnreadable);
    ASSERT_EQ(chmod((root_ / "store").c_str(), 0), 0);
    EXPECT_EQ(problem_of([&] { store.get(name(1)); }), StoreProblem::kNoPermission);
    ASSERT_EQ(chmod((root_ / "store").c_str(), 0700), 0);
    ASSERT_EQ(chmod(file(name(1)).parent_path().c_str(), 0700), 0);
    DirectoryStore beyond(root_ / "store" / name(1).substr(0, 2) / name(1).substr(2) / "x");
    EXPECT_TRUE(problem_of([&] { beyond.put(name(1), "two"); })) << "below a file";
  });
}

// A filesystem without room, as the process sees one: writing past the limit gives an error.
// (A read-only filesystem needs a mount, which tests cannot make; its error is read from the
// same place.)
TEST_F(CacheDirectoryStore, WithoutRoom) {
  testing::in_child([&] {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{10'000, 10'000};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    DirectoryStore store(root_ / "store");
    store.put(name(1), std::string(9'000, 'x'));
    EXPECT_EQ(problem_of([&] { store.put(name(1), std::string(20'000, 'y')); }),
              StoreProblem::kFull);
    EXPECT_EQ(problem_of([&] { store.put(name(2), std::string(20'000, 'y')); }),
              StoreProblem::kFull);
    EXPECT_EQ(store.get(name(1))->bytes(), std::string(9'000, 'x'));
    EXPECT_EQ(files(root_ / "store").size(), 1u) << "no half-written file stays";
  });
}

TEST_F(CacheDirectoryStore, PruningKeepsWhatWasUsedLast) {
  DirectoryStore store(root_ / "store");
  EXPECT_FALSE(store.wants_prune(1000));
  for (int i = 0; i < 10; ++i) {
    store.put(name(i), std::string(100, 'x'));
    set_age(name(i), 10'000 * (10 - i));
  }
  EXPECT_TRUE(store.wants_prune(1000)) << "nobody has counted yet";
  EXPECT_EQ(store.prune(1000).entries_removed, 0u) << "at the limit is not above it";
  EXPECT_FALSE(store.wants_prune(1000));
  store.get(name(0));  // the oldest, used now
  store.put(name(10), std::string(100, 'x'));
  EXPECT_TRUE(store.wants_prune(1000));
  EXPECT_FALSE(store.wants_prune(0));
  const PruneResult result = store.prune(1000);
  EXPECT_EQ(result.bytes_kept, 800u);
  EXPECT_EQ(result.entries_removed, 3u);
  for (const int gone : {1, 2, 3}) EXPECT_FALSE(store.contains(name(gone))) << gone;
  for (const int kept : {0, 4, 5, 6, 7, 8, 9, 10}) EXPECT_TRUE(store.contains(name(kept))) << kept;
  EXPECT_EQ(store.prune(0).entries_removed, 0u);
}

TEST_F(CacheDirectoryStore, PruningRemovesWhatDeadWritersLeft) {
  DirectoryStore store(root_ / "store");
  store.put(name(1), "one");
  const pid_t child = fork();
  if (child == 0) {
    // Dies within a put: the file's size limit is a signal by default.
    const rlimit limit{100, 100};
    setrlimit(RLIMIT_FSIZE, &limit);
    DirectoryStore(root_ / "store").put(name(1), std::string(5'000, 'x'));
    _exit(0);
  }
  int status;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  const fs::path folder = file(name(1)).parent_path();
  write_file(folder / ".tmp-elsewhere-1-0", "a live writer of another machine");
  write_file(folder / ".tmp-elsewhere-1-1", "a dead one");
  const timespec old[] = {{time(nullptr) - 7200, 0}, {time(nullptr) - 7200, 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, (folder / ".tmp-elsewhere-1-1").c_str(), old, 0), 0);
  EXPECT_EQ(files(root_ / "store").size(), 4u);
  EXPECT_EQ(store.list().size(), 1u);
  EXPECT_EQ(store.prune(0).leftovers_removed, 2u);
  EXPECT_EQ(store.get(name(1))->bytes(), "one");
  EXPECT_TRUE(fs::exists(folder / ".tmp-elsewhere-1-0"));
}

TEST_F(CacheDirectoryStore, PutsWhileAnotherRemovesEverything) {
  std::atomic<bool> stop{false};
  std::thread remover([&] {
    while (!stop) {
      std::error_code error;
      fs::remove_all(root_ / "store", error);
    }
  });
  DirectoryStore store(root_ / "store");
  int put = 0;
  for (int i = 0; i < 100; ++i) {
    try {
      store.put(name(i), "x");
      ++put;
      if (const auto blob = store.get(name(i))) {
        EXPECT_EQ(blob->bytes(), "x");
      }
      store.list();
      store.prune(1);
    } catch (const StoreError& error) {
      // It gives up after a few attempts, and says so.
      EXPECT_EQ(error.problem(), StoreProblem::kBroken) << error.what();
    }
  }
  stop = true;
  remover.join();
  EXPECT_GT(put, 0);
}

}  // namespace
}  // namespace torch_tpu::cache
