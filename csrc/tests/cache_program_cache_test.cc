// The tiers together: which answers, what is copied where, and what happens when one fails.
#include <sys/stat.h>

#include <atomic>
#include <condition_variable>
#include <random>
#include <thread>

#include "cache/directory_store.h"
#include "cache/program_cache.h"
#include "cache/remote_store.h"
#include "tests/cache_test_support.h"

namespace torch_tpu::cache {
namespace {

using std::chrono::milliseconds;
using testing::bytes_of;
using testing::program_key;
namespace fs = std::filesystem;

constexpr milliseconds kLong{60'000};

class CacheTiers : public testing::CacheTest {
 protected:
  void TearDown() override {
    set_remote_store_factory(nullptr);
    CacheTest::TearDown();
  }
  static void put(ProgramCache& cache, const EntryKey& key, const std::string& program) {
    cache.store(key, program);
    ASSERT_TRUE(cache.flush(kLong));
  }
  fs::path file_of(const fs::path& folder, const EntryKey& key) const {
    return folder / key.name().substr(0, 2) / key.name().substr(2);
  }
};

// A remote in memory, whose answers can be held back or be errors.
class FakeRemote {
 public:
  std::unique_ptr<Store> store() {
    return std::make_unique<RemoteStore>(
        "fake://remote",
        RemoteHooks{.get = [this](const std::string& name) -> std::optional<std::string> {
                      ++gets;
                      std::unique_lock lock(mutex_);
                      open_.wait(lock, [this] { return !held_; });
                      if (broken) throw std::runtime_error("no route to the bucket");
                      const auto found = entries_.find(name);
                      return found == entries_.end() ? std::nullopt : std::optional(found->second);
                    },
                    .put =
                        [this](const std::string& name, std::string_view bytes) {
                          const std::lock_guard lock(mutex_);
                          if (broken) throw std::runtime_error("no route to the bucket");
                          entries_[name] = bytes;
                        },
                    .remove =
                        [this](const std::string& name) {
                          const std::lock_guard lock(mutex_);
                          entries_.erase(name);
                        },
                    .list =
                        [this] {
                          const std::lock_guard lock(mutex_);
                          std::vector<StoredEntry> out;
                          for (const auto& [name, bytes] : entries_)
                            out.push_back({name, bytes.size(), 0});
                          return out;
                        }});
  }
  // Reads do not end before release().
  void hold() {
    const std::lock_guard lock(mutex_);
    held_ = true;
  }
  void release() {
    const std::lock_guard lock(mutex_);
    held_ = false;
    open_.notify_all();
  }

  std::atomic<int> gets{0};
  std::atomic<bool> broken{false};

 private:
  std::mutex mutex_;
  std::condition_variable open_;
  bool held_ = false;
  std::map<std::string, std::string> entries_;
};

TEST_F(CacheTiers, FromNothingToEveryTier) {
  const EntryKey key = program_key("module {}");
  {
    ProgramCache cache(settings());
    FindOrClaim found = cache.find_or_claim(key);
    ASSERT_TRUE(found.claim && !found.hit && !found.claim->reading());
    EXPECT_EQ(found.reason, EntryProblem::kAbsent);
    put(cache, key, "program");
    EXPECT_EQ(bytes_of(cache.find(key)), "program");
    const CacheStatistics s = cache.statistics();
    EXPECT_EQ(s.finds, 2u);
    EXPECT_EQ(s.misses.at("absent"), 1u);
    EXPECT_EQ(s.tiers[static_cast<size_t>(Tier::kMachine)].hits, 1u);
    for (const Tier tier : {Tier::kMachine, Tier::kPersistent}) {
      EXPECT_EQ(s.tiers[static_cast<size_t>(tier)].stores, 1u);
      EXPECT_GT(s.tiers[static_cast<size_t>(tier)].bytes_written, 7u);
    }
  }
  {  // After a restart of the machine.
    fs::remove_all(root_ / "machine");
    ProgramCache cache(settings());
    const Lookup found = cache.find(key);
    EXPECT_EQ(bytes_of(found), "program");
    EXPECT_EQ(found.hit->tier, Tier::kPersistent);
    EXPECT_EQ(cache.find(key).hit->tier, Tier::kMachine) << "copied there";
  }
  {  // After the user emptied the persistent folder.
    fs::remove_all(root_ / "persistent");
    ProgramCache cache(settings());
    EXPECT_EQ(cache.find_or_claim(key).hit->tier, Tier::kMachine);
    ASSERT_TRUE(cache.flush(kLong));
    EXPECT_TRUE(cache.tier_store(Tier::kPersistent)->contains(key.name())) << "copied back";
  }
  EXPECT_TRUE(log().empty());
}

TEST_F(CacheTiers, ScopesAndKindsDoNotMix) {
  ProgramCache cache(settings());
  put(cache, program_key("m", "plugin 1"), "one");
  EXPECT_FALSE(cache.find(program_key("m", "plugin 2")));
  EXPECT_FALSE(cache.find(EntryKey(EntryKind::kCall, "plugin 1", "m")));
  put(cache, program_key("m", "plugin 2"), "two");
  EXPECT_EQ(bytes_of(cache.find(program_key("m", "plugin 1"))), "one");
  EXPECT_EQ(bytes_of(cache.find(program_key("m", "plugin 2"))), "two");
  // A file under another's name, as a copying mistake would leave it.
  fs::copy_file(file_of(root_ / "machine", program_key("m", "plugin 1")),
                file_of(root_ / "machine", program_key("m", "plugin 2")),
                fs::copy_options::overwrite_existing);
  EXPECT_EQ(bytes_of(cache.find(program_key("m", "plugin 2"))), "two") << "from the other tier";
  EXPECT_EQ(cache.statistics().dropped_entries, 1u);
  EXPECT_EQ(lines_with("stored for another key"), 1u);
}

TEST_F(CacheTiers, BadEntriesAreRemovedWithALine) {
  ProgramCache cache(settings());
  const EntryKey key = program_key("m");
  put(cache, key, "program");
  for (const fs::path& folder : {root_ / "machine", root_ / "persistent"}) {
    std::string bytes = testing::read_file(file_of(folder, key));
    bytes.back() ^= 1;
    testing::write_file(file_of(folder, key), bytes);
  }
  EXPECT_EQ(cache.verify(Tier::kMachine),
            (std::map<std::string, EntryProblem>{{key.name(), EntryProblem::kChecksum}}));
  const Lookup found = cache.find(key);
  EXPECT_FALSE(found);
  EXPECT_EQ(found.reason, EntryProblem::kChecksum);
  EXPECT_EQ(cache.statistics().misses.at("damaged"), 1u);
  EXPECT_EQ(cache.statistics().dropped_entries, 2u);
  EXPECT_EQ(lines_with("removed an entry of the machine cache"), 1u);
  EXPECT_EQ(lines_with("removed an entry of the persistent cache"), 1u);
  EXPECT_EQ(cache.find(key).reason, EntryProblem::kAbsent);
  put(cache, key, "again");
  EXPECT_EQ(bytes_of(cache.find(key)), "again");
}

TEST_F(CacheTiers, RandomFilesAreNeverAHit) {
  ProgramCache cache(settings());
  std::mt19937_64 random(3);
  Store& store = *cache.tier_store(Tier::kMachine);
  for (int i = 0; i < 1000; ++i) {
    const EntryKey key = program_key(std::to_string(i));
    std::string bytes(random() % 300, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    store.put(key.name(), bytes);
    EXPECT_FALSE(cache.find(key));
    EXPECT_FALSE(store.contains(key.name()));
  }
  EXPECT_EQ(cache.statistics().dropped_entries, 1000u);
  EXPECT_LE(log().size(), 10u) << "the log is not flooded";
}

TEST_F(CacheTiers, EitherTierAlone) {
  const EntryKey key = program_key("m");
  Settings machine = settings(), persistent = settings(), none = settings();
  machine.persistent_root.clear();
  persistent.machine_folder.clear();
  none.persistent_root.clear();
  none.machine_folder.clear();
  for (const Settings& s : {machine, persistent}) {
    ProgramCache cache(s);
    ASSERT_TRUE(cache.find_or_claim(key).claim);
    put(cache, key, "program");
    EXPECT_EQ(bytes_of(cache.find(key)), "program");
  }
  ProgramCache cache(none);
  EXPECT_TRUE(cache.find_or_claim(key).claim);
  put(cache, key, "program");
  EXPECT_FALSE(cache.find(key));
  EXPECT_EQ(cache.clear(Tier::kMachine), 0u);
  EXPECT_TRUE(log().empty());
}

TEST_F(CacheTiers, OnlySignedEntriesWithAKey) {
  Settings plain = settings(), with_key = settings(), other_key = settings();
  with_key.signing_key = "the key of this fleet";
  other_key.signing_key = "the key of another one";
  const EntryKey key = program_key("m");
  {
    ProgramCache cache(plain);
    put(cache, key, "unsigned");
  }
  {
    ProgramCache cache(with_key);
    EXPECT_EQ(cache.find_or_claim(key).reason, EntryProblem::kUnsigned);
    EXPECT_EQ(lines_with("not signed"), 2u);
    put(cache, key, "signed");
    EXPECT_EQ(bytes_of(cache.find(key)), "signed");
  }
  {
    ProgramCache cache(other_key);
    EXPECT_EQ(cache.find(key).reason, EntryProblem::kWrongSignature);
    EXPECT_EQ(cache.import_entry(key.name(), "x"), EntryProblem::kForeign);
  }
  {
    ProgramCache cache(with_key);
    EXPECT_EQ(bytes_of(cache.find(key)), "signed") << "others' entries are not removed";
    // The shared folder may then belong to anybody.
    fs::remove_all(root_ / "machine");
    ASSERT_EQ(chmod((root_ / "persistent").c_str(), 0777), 0);
    EXPECT_EQ(bytes_of(cache.find(key)), "signed");
  }
  {
    fs::remove_all(root_ / "machine");
    ProgramCache cache(plain);
    EXPECT_EQ(cache.find(key).reason, EntryProblem::kUntrusted);
    EXPECT_EQ(cache.find(key).reason, EntryProblem::kAbsent) << "not looked at for a while";
    put(cache, key, "mine");
    EXPECT_EQ(bytes_of(cache.find(key)), "mine");
    EXPECT_EQ(lines_with("others may write to it"), 1u);
  }
}

TEST_F(CacheTiers, TroubleIsSaidOnce) {
  testing::as_ordinary_user(root_, [&] {
    fs::create_directory(root_ / "persistent");
    ASSERT_EQ(chmod((root_ / "persistent").c_str(), 0500), 0);
    // Pauses are over at once, so that every store tries again.
    ProgramCache cache(settings(), {.pause_after_failure = milliseconds(0)});
    for (int i = 0; i < 20; ++i) {
      const EntryKey key = program_key(std::to_string(i));
      ASSERT_TRUE(cache.find_or_claim(key).claim);
      put(cache, key, "program");
      EXPECT_EQ(bytes_of(cache.find(key)), "program");
    }
    ASSERT_TRUE(cache.flush(kLong));
    EXPECT_EQ(log().size(), 1u);
    EXPECT_EQ(lines_with("the persistent cache takes no programs for now (no permission)"), 1u);
  });
}

TEST_F(CacheTiers, WithoutRoomAProgramIsJustNotKept) {
  testing::in_child([&] {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{10'000, 10'000};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    ProgramCache cache(settings());
    const EntryKey key = program_key("m");
    ASSERT_TRUE(cache.find_or_claim(key).claim);
    put(cache, key, std::string(20'000, 'p'));
    EXPECT_FALSE(cache.find(key));
    EXPECT_TRUE(cache.find_or_claim(key).claim) << "and nobody waits for it";
    EXPECT_EQ(lines_with("(full)"), 2u) << "a line for each tier";
    EXPECT_EQ(log().size(), 2u);
  });
}

TEST_F(CacheTiers, CapsHold) {
  Settings s = settings();
  s.machine_bytes = 20'000;
  s.persistent_bytes = 50'000;
  ProgramCache cache(s);
  for (int i = 0; i < 100; ++i) put(cache, program_key(std::to_string(i)), std::string(1000, 'p'));
  for (const Tier tier : {Tier::kMachine, Tier::kPersistent}) {
    Store& store = *cache.tier_store(tier);
    // Pruning is nobody's to wait for; the test's own time limit ends this if it never happens.
    while (store.list().size() >= 100) std::this_thread::sleep_for(milliseconds(1));
    EXPECT_FALSE(store.list().empty());
    const uint64_t cap = tier == Tier::kMachine ? s.machine_bytes : s.persistent_bytes;
    EXPECT_LE(store.prune(cap).bytes_kept, cap) << to_string(tier);
  }
}

TEST_F(CacheTiers, ARefusedProgramIsForgotten) {
  ProgramCache cache(settings());
  const EntryKey key = program_key("m");
  put(cache, key, "program");
  cache.drop(key, "it was made for another processor");
  EXPECT_FALSE(cache.find(key));
  EXPECT_EQ(files(root_ / "machine").size() + files(root_ / "persistent").size(), 0u);
  EXPECT_EQ(lines_with("it was made for another processor"), 1u);
  EXPECT_EQ(cache.statistics().refused_entries, 1u);
}

TEST_F(CacheTiers, ClearingAndImporting) {
  ProgramCache cache(settings());
  for (int i = 0; i < 5; ++i) put(cache, program_key(std::to_string(i)), "program");
  const std::string name = program_key("1").name();
  const std::string bytes(cache.tier_store(Tier::kMachine)->get(name)->bytes());
  EXPECT_EQ(cache.clear(Tier::kMachine), 5u);
  EXPECT_EQ(files(root_ / "machine").size(), 0u);
  EXPECT_EQ(files(root_ / "persistent").size(), 5u);
  EXPECT_EQ(cache.clear(Tier::kPersistent), 5u);
  EXPECT_EQ(cache.import_entry(name, bytes.substr(1)), EntryProblem::kForeign);
  EXPECT_EQ(cache.import_entry(program_key("2").name(), bytes), EntryProblem::kKeyMismatch);
  EXPECT_EQ(cache.import_entry(name, bytes), EntryProblem::kNone);
  EXPECT_EQ(bytes_of(cache.find(program_key("1"))), "program");
  EXPECT_EQ(files(root_ / "persistent").size(), 1u);
  EXPECT_EQ(cache.tier_store(Tier::kArchive), nullptr);
}

TEST_F(CacheTiers, Archives) {
  const EntryKey good = program_key("good"), bad = program_key("bad"), other = program_key("other");
  const std::string first = encode_entry(good, "archived", ""), second = first;
  const std::string path = (root_ / "fleet.archive").string();
  testing::write_file(path, "head" + first + second);
  ProgramCache cache(settings());
  cache.add_archive(
      path, {{good.name(), 4, first.size()}, {bad.name(), 4 + first.size(), second.size()}});
  const Lookup found = cache.find(good);
  EXPECT_EQ(bytes_of(found), "archived");
  EXPECT_EQ(found.hit->tier, Tier::kArchive);
  EXPECT_EQ(cache.find(bad).reason, EntryProblem::kKeyMismatch);
  EXPECT_EQ(cache.find(bad).reason, EntryProblem::kKeyMismatch);
  EXPECT_EQ(lines_with("ignored an entry of the archive cache"), 1u) << "once per entry";
  EXPECT_TRUE(cache.find_or_claim(other).claim);
  cache.drop(good, "refused");
  EXPECT_FALSE(cache.find(good)) << "an archive cannot be changed, but passed over";

  EXPECT_THROW(cache.add_archive(path, {{good.name(), 4, 1'000'000}}), StoreError);
  EXPECT_THROW(cache.add_archive(path, {{good.name(), ~0ull, 2}}), StoreError);
  EXPECT_THROW(cache.add_archive(path, {{"../x", 0, 1}}), StoreError);
  EXPECT_THROW(cache.add_archive(root_ / "none", {}), StoreError);
  EXPECT_THROW(cache.add_archive(root_, {}), StoreError);
  ASSERT_EQ(chmod(path.c_str(), 0666), 0);
  EXPECT_THROW(cache.add_archive(path, {}), StoreError);
  Settings with_key = settings();
  with_key.signing_key = "the key of this fleet";
  ProgramCache careful(with_key);
  careful.add_archive(path, {{good.name(), 4, first.size()}});
  EXPECT_EQ(careful.find(good).reason, EntryProblem::kUnsigned);
}

TEST_F(CacheTiers, AQuickRemoteIsAHit) {
  FakeRemote remote;
  const EntryKey key = program_key("m");
  {
    ProgramCache cache(settings(), {}, remote.store());
    ASSERT_TRUE(cache.find_or_claim(key).claim);
    put(cache, key, "program");
  }
  fs::remove_all(root_ / "machine");
  // Enough patience for the slowest test machine.
  ProgramCache cache(settings(), {.patience = kLong}, remote.store());
  FindOrClaim found = cache.find_or_claim(key);
  ASSERT_TRUE(found.hit);
  EXPECT_EQ(found.hit->payload.bytes(), "program");
  EXPECT_EQ(found.hit->tier, Tier::kPersistent);
  EXPECT_EQ(cache.find(key).hit->tier, Tier::kMachine) << "copied there";
}

TEST_F(CacheTiers, ASlowRemoteRacesTheCompiler) {
  FakeRemote remote;
  const EntryKey key = program_key("m");
  {
    ProgramCache cache(settings(), {}, remote.store());
    put(cache, key, "program");
  }
  fs::remove_all(root_ / "machine");
  remote.hold();
  ProgramCache cache(settings(), {.patience = milliseconds(5)}, remote.store());
  {
    FindOrClaim found = cache.find_or_claim(key);
    ASSERT_TRUE(found.claim);
    EXPECT_EQ(found.reason, EntryProblem::kSlow);
    EXPECT_TRUE(found.claim->reading());
    EXPECT_FALSE(found.claim->late_hit());
    EXPECT_FALSE(found.claim->wait_late_hit(milliseconds(1)));
    EXPECT_EQ(cache.find(key).reason, EntryProblem::kSlow);
    std::atomic<int> calls{0};
    found.claim->on_read([&](const Lookup& late) { calls += late ? 1 : 100; });
    remote.release();
    const std::optional<Hit> late = found.claim->wait_late_hit(kLong);
    ASSERT_TRUE(late);
    EXPECT_EQ(late->payload.bytes(), "program");
    EXPECT_TRUE(found.claim->late_hit());
    EXPECT_EQ(remote.gets, 1) << "one read for both";
    ASSERT_TRUE(cache.shut_down(kLong));
    EXPECT_EQ(calls, 1);
    found.claim->on_read([&](const Lookup& read) { calls += read ? 1 : 100; });
    EXPECT_EQ(calls, 2) << "at once when it is over";
  }
  EXPECT_EQ(cache.find(key).hit->tier, Tier::kMachine) << "kept for the next";
  const CacheStatistics s = cache.statistics();
  EXPECT_EQ(s.late_hits, 1u);
  EXPECT_EQ(s.misses.at("not read in time"), 2u);
  EXPECT_TRUE(log().empty());
}

TEST_F(CacheTiers, AnUnreachableRemoteIsSaidOnceAndLeftAlone) {
  FakeRemote remote;
  remote.broken = true;
  ProgramCache cache(settings(), {.patience = kLong}, remote.store());
  for (int i = 0; i < 20; ++i) {
    const EntryKey key = program_key(std::to_string(i));
    FindOrClaim found = cache.find_or_claim(key);
    ASSERT_TRUE(found.claim);
    EXPECT_FALSE(found.claim->reading());
    put(cache, key, "program");
    EXPECT_EQ(bytes_of(cache.find(key)), "program");
  }
  EXPECT_EQ(remote.gets, 1);
  EXPECT_EQ(log().size(), 1u);
  EXPECT_EQ(lines_with("unreachable"), 1u);
  EXPECT_EQ(lines_with("no route to the bucket"), 1u);
}

TEST_F(CacheTiers, AnUnreachableRemoteIsTriedAgain) {
  FakeRemote remote;
  remote.broken = true;
  ProgramCache cache(settings(), {.patience = kLong, .pause_after_failure = milliseconds(0)},
                     remote.store());
  EXPECT_EQ(cache.find(program_key("1")).reason, EntryProblem::kUnreadable);
  remote.broken = false;
  put(cache, program_key("1"), "program");
  EXPECT_EQ(cache.tier_store(Tier::kPersistent)->list().size(), 1u);
  EXPECT_EQ(log().size(), 1u);
}

TEST_F(CacheTiers, ARemoteThatHangsIsLeftAlone) {
  FakeRemote remote;
  remote.hold();
  ProgramCache cache(settings(), {.patience = milliseconds(5), .stalled = milliseconds(1)},
                     remote.store());
  EXPECT_TRUE(cache.find_or_claim(program_key("1")).claim->reading());
  while (remote.gets == 0) std::this_thread::yield();
  std::this_thread::sleep_for(milliseconds(5));
  EXPECT_FALSE(cache.find_or_claim(program_key("2")).claim->reading());
  EXPECT_EQ(remote.gets, 1);
  EXPECT_EQ(lines_with("has not ended"), 1u);
  EXPECT_FALSE(cache.shut_down(milliseconds(1))) << "it is still inside of the hook";
  remote.release();
}

TEST_F(CacheTiers, RemotesAreMadeWhenNeeded) {
  FakeRemote remote;
  std::atomic<int> made{0};
  Settings s = settings();
  s.persistent_root = "fake://remote";
  {
    ProgramCache cache(s, {.patience = kLong});
    EXPECT_TRUE(cache.find_or_claim(program_key("m")).claim);
    EXPECT_EQ(lines_with("no access to remote filesystems"), 1u);
  }
  set_remote_store_factory([&](const std::string& url) {
    EXPECT_EQ(url, "fake://remote");
    ++made;
    return remote.store();
  });
  ProgramCache cache(s, {.patience = kLong});
  EXPECT_EQ(made, 0);
  put(cache, program_key("m"), "program");
  fs::remove_all(root_ / "machine");
  EXPECT_EQ(cache.find(program_key("m")).hit->tier, Tier::kPersistent);
  EXPECT_EQ(made, 1);
}

TEST_F(CacheTiers, WaitingGoesThroughTheHook) {
  std::atomic<int> waits{0};
  set_host_hooks({.log = {}, .blocking = [&](const std::function<void()>& wait) {
                    ++waits;
                    wait();
                  }});
  ProgramCache cache(settings());
  const EntryKey key = program_key("m");
  FindOrClaim first = cache.find_or_claim(key);
  EXPECT_EQ(waits, 0) << "nothing to wait for";
  std::thread compiler([&] {
    while (cache.statistics().waits == 0) std::this_thread::yield();
    cache.store(key, "program");
    first.claim.reset();
  });
  EXPECT_EQ(cache.find_or_claim(key).hit->payload.bytes(), "program");
  compiler.join();
  EXPECT_EQ(waits, 1);
  cache.flush(kLong);
  EXPECT_EQ(waits, 2);
}

TEST_F(CacheTiers, ManyThreadsAtOnce) {
  ProgramCache cache(settings());
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 60; ++i) {
        const EntryKey key = program_key(std::to_string(i % 20));
        FindOrClaim found = cache.find_or_claim(key);
        if (found.claim) {
          cache.store(key, "program " + key.material());
        } else {
          EXPECT_EQ(found.hit->payload.bytes(), "program " + key.material());
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(cache.statistics().tiers[static_cast<size_t>(Tier::kMachine)].stores, 20u);
  EXPECT_TRUE(log().empty());
}

}  // namespace
}  // namespace torch_tpu::cache
