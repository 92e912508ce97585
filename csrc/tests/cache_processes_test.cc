// Many processes on one cache: locks, claims, and processes that are killed.
#include <sys/mman.h>

#include <atomic>
#include <memory>
#include <random>
#include <thread>

#include "cache/directory_store.h"
#include "cache/key_lock.h"
#include "tests/cache_test_support.h"

namespace torch_tpu::cache {
namespace {

using std::chrono::milliseconds;
using testing::program_key;

class CacheProcesses : public testing::CacheTest {
 protected:
  // Zeroes that forked children share.
  template <class T>
  static T* shared_memory(size_t count) {
    void* address =
        mmap(nullptr, count * sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(address, MAP_FAILED);
    return static_cast<T*>(address);
  }
};

TEST_F(CacheProcesses, OneHolderPerKey) {
  const std::string one = program_key("1").name(), two = program_key("2").name();
  KeyLocks& locks = KeyLocks::of_folder(root_);
  EXPECT_EQ(&locks, &KeyLocks::of_folder(root_));
  std::optional<KeyLock> held = locks.try_lock(one);
  ASSERT_TRUE(held && held->held());
  EXPECT_FALSE(locks.try_lock(one)) << "not even this process gets it twice";
  EXPECT_TRUE(locks.try_lock(two));
  testing::in_child([&] {
    EXPECT_FALSE(locks.try_lock(one)) << "a child has none of its parent's locks";
    EXPECT_TRUE(locks.try_lock(two));
    held->release();  // the child's copy is nobody's
    EXPECT_FALSE(locks.try_lock(one));
  });
  KeyLock moved = *std::move(held);
  held.reset();
  EXPECT_FALSE(locks.try_lock(one));
  moved.release();
  EXPECT_TRUE(locks.try_lock(one));
}

TEST_F(CacheProcesses, EachKeyIsClaimedOnce) {
  constexpr int kProcesses = 8, kKeys = 24;
  auto* claims = shared_memory<std::atomic<int>>(kKeys);
  auto* ready = shared_memory<std::atomic<int>>(1);
  std::vector<pid_t> children;
  std::fflush(nullptr);
  for (int p = 0; p < kProcesses; ++p) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child != 0) {
      children.push_back(child);
      continue;
    }
    {
      ProgramCache cache(settings());
      ++*ready;
      while (*ready < kProcesses) std::this_thread::yield();
      for (int i = 0; i < kKeys; ++i) {
        const int k = p % 2 ? i : kKeys - 1 - i;  // they meet from both ends
        const EntryKey key = program_key(std::to_string(k));
        const std::string program(1000 + k, 'p');
        FindOrClaim found = cache.find_or_claim(key);
        if (found.claim) {
          ++claims[k];
          std::this_thread::sleep_for(milliseconds(2));
          cache.store(key, program);
        } else {
          EXPECT_EQ(found.hit->payload.bytes(), program);
        }
      }
      EXPECT_TRUE(cache.flush(milliseconds(60'000)));
      EXPECT_TRUE(log().empty());
    }
    _exit(HasFailure() ? 1 : 0);
  }
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
  for (int k = 0; k < kKeys; ++k) EXPECT_EQ(claims[k], 1) << k;
  ProgramCache cache(settings());
  EXPECT_EQ(cache.tier_store(Tier::kMachine)->list().size(), static_cast<size_t>(kKeys));
  EXPECT_EQ(cache.tier_store(Tier::kPersistent)->list().size(), static_cast<size_t>(kKeys));
}

TEST_F(CacheProcesses, KilledWritersLeaveNoBadEntryAndNoLock) {
  constexpr int kKills = 200, kKeys = 4;
  std::mt19937 random(11);
  auto* written = shared_memory<std::atomic<int>>(1);
  auto* holding = shared_memory<std::atomic<int>>(1);
  int killed_with_lock = 0;
  Settings only_machine = settings();
  only_machine.persistent_root.clear();
  ProgramCache cache(only_machine);
  Store& store = *cache.tier_store(Tier::kMachine);
  ASSERT_TRUE(cache.find_or_claim(program_key("0")).claim);  // makes the folder
  KeyLocks& locks = KeyLocks::of_folder(only_machine.machine_folder);
  for (int i = 0; i < kKills; ++i) {
    std::fflush(nullptr);
    *holding = 0;
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ProgramCache own(only_machine);
      for (int n = 0;; ++n) {
        const EntryKey key = program_key(std::to_string(n % kKeys));
        own.tier_store(Tier::kMachine)->remove(key.name());
        FindOrClaim found = own.find_or_claim(key);
        *holding = found.claim ? 1 : 0;
        own.store(key, std::string(100'000 + 1000 * (n % 100), static_cast<char>('a' + n % 26)));
        ++*written;
        found.claim.reset();
        *holding = 0;
      }
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 4000));
    kill(child, SIGKILL);
    int status;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
    killed_with_lock += *holding;

    EXPECT_TRUE(cache.verify(Tier::kMachine).empty());
    for (int k = 0; k < kKeys; ++k) {
      const std::string name = program_key(std::to_string(k)).name();
      EXPECT_TRUE(locks.try_lock(name)) << "no lock outlives its holder";
      if (const Lookup found = cache.find(program_key(std::to_string(k)))) {
        const std::string_view program = found.hit->payload.bytes();
        EXPECT_EQ(program.find_first_not_of(program[0]), std::string_view::npos);
      }
    }
  }
  // Otherwise nothing was tried.
  EXPECT_GT(*written, 0);
  EXPECT_GT(killed_with_lock, 0);
  EXPECT_EQ(cache.statistics().dropped_entries, 0u);
  store.prune(0);
  EXPECT_EQ(files(only_machine.machine_folder).size(), store.list().size())
      << "what the killed ones were writing is gone";
}

TEST_F(CacheProcesses, AWaiterGoesOnWhenTheHolderDies) {
  const EntryKey key = program_key("1");
  int descriptors[2];
  ASSERT_EQ(pipe(descriptors), 0);
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    ProgramCache own(settings());
    const FindOrClaim found = own.find_or_claim(key);
    if (write(descriptors[1], found.claim ? "y" : "n", 1) != 1) _exit(1);
    for (;;) pause();
  }
  char claimed = 0;
  ASSERT_EQ(read(descriptors[0], &claimed, 1), 1);
  close(descriptors[0]);
  close(descriptors[1]);
  ASSERT_EQ(claimed, 'y');
  ProgramCache cache(settings());
  std::thread killer([&] {
    while (cache.statistics().waits == 0) std::this_thread::yield();
    kill(child, SIGKILL);
  });
  const FindOrClaim found = cache.find_or_claim(key);
  killer.join();
  EXPECT_TRUE(found.claim);
  EXPECT_EQ(cache.statistics().waits, 1u);
  int status;
  ASSERT_EQ(waitpid(child, &status, 0), child);
}

TEST_F(CacheProcesses, AWaitThatIsTooLongEnds) {
  const EntryKey key = program_key("1");
  ProgramCache cache(settings(), {.max_wait = milliseconds(20)});
  const FindOrClaim first = cache.find_or_claim(key);
  ASSERT_TRUE(first.claim);
  const FindOrClaim second = cache.find_or_claim(key);
  EXPECT_TRUE(second.claim) << "compiles as well";
  EXPECT_EQ(lines_with("compiled here as well"), 1u);
}

// Forks while other threads are inside of the cache; the child must be able to use it.
TEST_F(CacheProcesses, AForkedChildGoesOn) {
  ProgramCache cache(settings());
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; !stop; ++i) {
        const EntryKey key = program_key(std::to_string(t) + "/" + std::to_string(i % 50));
        if (cache.find_or_claim(key).claim) cache.store(key, "program");
        cache.drop(key, "to fill the log");
      }
    });
  }
  for (int i = 0; i < 10; ++i) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      alarm(60);  // a deadlock ends the child, and fails the test
      const EntryKey key = program_key("child " + std::to_string(i));
      const bool claimed = cache.find_or_claim(key).claim.has_value();
      cache.store(key, "from the child");
      const Lookup found = cache.find(key);
      cache.flush(milliseconds(1000));
      const bool persistent = cache.tier_store(Tier::kPersistent)->contains(key.name());
      _exit(claimed && found && persistent ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace torch_tpu::cache
