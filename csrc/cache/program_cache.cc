#include "cache/program_cache.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <unordered_map>
#include <unordered_set>

#include "cache/background.h"
#include "cache/directory_store.h"
#include "cache/fork_safe_mutex.h"
#include "cache/host_hooks.h"
#include "cache/remote_store.h"
#include "cache/slow_read.h"

namespace torch_tpu::cache {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr size_t kReaders = 4;
constexpr size_t kWaitingReads = 1024;
constexpr size_t kWaitingWrites = 1024;
constexpr uint64_t kWaitingBytes = 512ull << 20;
constexpr size_t kReportedNames = 10'000;
constexpr int kLinesPerMinute = 10;
constexpr std::string_view kPrefix = "[compilation cache] ";

void say(const std::string& text) { log_line(std::string(kPrefix) + text); }

milliseconds left_of(milliseconds limit, Clock::time_point start) {
  const auto left = std::chrono::duration_cast<milliseconds>(start + limit - Clock::now());
  return std::max(left, milliseconds(0));
}

// Not more than a few lines a minute; says how many were left out.
class LineLimit {
 public:
  // What to say for `text`; nullopt: nothing.
  std::optional<std::string> admit(const std::string& text) {
    const std::lock_guard lock(mutex_);
    const Clock::time_point now = Clock::now();
    if (now - minute_ > std::chrono::minutes(1)) {
      minute_ = now;
      lines_ = 0;
    }
    if (++lines_ > kLinesPerMinute) {
      ++left_out_;
      return std::nullopt;
    }
    const uint64_t left_out = std::exchange(left_out_, 0);
    return left_out == 0 ? text : text + " (" + std::to_string(left_out) + " like it before)";
  }

 private:
  ForkSafeMutex mutex_;
  // Guarded by mutex_.
  Clock::time_point minute_{};
  int lines_ = 0;
  uint64_t left_out_ = 0;
};

enum class Access { kRead, kWrite };

// Counters, and what is known about the state of a tier.
struct TierState {
  std::atomic<uint64_t> hits{0}, stores{0}, bytes_read{0}, bytes_written{0}, read_ns{0};
  std::atomic<Clock::rep> reads_paused_until{0}, writes_paused_until{0};
  std::atomic<uint32_t> warned{0};  // a bit per StoreProblem
  std::atomic<bool> pruning{false};

  bool usable(Access access) const {
    const auto& until = access == Access::kRead ? reads_paused_until : writes_paused_until;
    const Clock::rep time = until.load(std::memory_order_relaxed);
    return time == 0 || Clock::now().time_since_epoch().count() >= time;
  }
  void pause(Access access, milliseconds duration) {
    auto& until = access == Access::kRead ? reads_paused_until : writes_paused_until;
    until.store((Clock::now() + duration).time_since_epoch().count(), std::memory_order_relaxed);
  }
};

bool concerns_signatures(EntryProblem problem) {
  return problem == EntryProblem::kUnsigned || problem == EntryProblem::kWrongSignature;
}

// Of several tiers' reasons the first that says more than "absent".
void note_reason(EntryProblem& reason, EntryProblem found) {
  if (reason == EntryProblem::kNone || reason == EntryProblem::kAbsent) reason = found;
}

}  // namespace

const char* to_string(Tier tier) {
  switch (tier) {
    case Tier::kArchive:
      return "archive";
    case Tier::kMachine:
      return "machine";
    case Tier::kPersistent:
      return "persistent";
  }
  return "unknown";
}

class ProgramCache::Impl {
 public:
  Impl(Settings settings, Timing timing, std::unique_ptr<Store> persistent)
      : settings_(std::move(settings)), timing_(timing), persistent_(std::move(persistent)) {
    if (!settings_.machine_folder.empty()) {
      machine_ = std::make_unique<DirectoryStore>(
          settings_.machine_folder,
          DirectoryStore::Options{.allow_foreign = false, .anchor = settings_.machine_anchor});
    }
    if (persistent_ || settings_.persistent_root.empty()) return;
    if (settings_.persistent_is_remote()) {
      persistent_ = make_remote_store(settings_.persistent_root);
    } else {
      persistent_ = std::make_unique<DirectoryStore>(
          settings_.persistent_root,
          DirectoryStore::Options{.allow_foreign = !settings_.signing_key.empty(), .anchor = {}});
    }
  }

  // The readers first: what they have read goes to the other two.
  ~Impl() {
    for (Background* background : {&readers_, &writer_, &upkeep_}) {
      background->stop(std::chrono::hours(24));
    }
  }

  const Settings& settings() const { return settings_; }

  Lookup find(const EntryKey& key) {
    Lookup result = find_fast(key);
    if (!result && persistent_slow()) {
      if (const std::shared_ptr<SlowRead> read = read_patiently(key, result)) {
        note_reason(result.reason, EntryProblem::kSlow);
      }
    }
    count(result);
    return result;
  }

  FindOrClaim find_or_claim(const EntryKey& key) {
    Lookup result = find_fast(key);
    Claim claim;
    if (!result) claim.lock_ = wait_for_lock(key, result);
    if (!result && persistent_slow()) {
      claim.read_ = read_patiently(key, result);
      if (claim.read_) note_reason(result.reason, EntryProblem::kSlow);
    }
    count(result);
    if (result) return {std::move(result.hit), std::nullopt, EntryProblem::kNone};
    return {std::nullopt, std::move(claim), result.reason};
  }

  void store(const EntryKey& key, std::string_view payload) {
    std::shared_ptr<const std::string> bytes;
    try {
      bytes =
          std::make_shared<const std::string>(encode_entry(key, payload, settings_.signing_key));
    } catch (const std::bad_alloc&) {
      dropped_stores_.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    put(Tier::kMachine, key.name(), *bytes);
    if (!persistent_ || !state(Tier::kPersistent).usable(Access::kWrite)) return;
    put_in_background(key.name(), Blob(bytes, *bytes), bytes->size());
  }

  void drop(const EntryKey& key, const std::string& why) {
    refused_entries_.fetch_add(1, std::memory_order_relaxed);
    remember(refused_, key.name());
    const std::string& name = key.name();
    remove_quietly(Tier::kMachine, name);
    if (persistent_slow()) {
      writer_.submit([this, name] { remove_quietly(Tier::kPersistent, name); });
    } else {
      remove_quietly(Tier::kPersistent, name);
    }
    say_limited("the plugin refused the entry " + name + ", which is compiled again: " + why);
  }

  bool flush(milliseconds limit) {
    bool done = false;
    blocking([&] { done = writer_.drain(limit); });
    return done;
  }

  bool shut_down(milliseconds limit) {
    const Clock::time_point start = Clock::now();
    bool done = flush(limit);
    blocking([&] {
      for (Background* background : {&readers_, &writer_, &upkeep_}) {
        done &= background->stop(left_of(limit, start));
      }
    });
    return done;
  }

  void add_archive(const std::filesystem::path& path, const std::vector<ArchiveMember>& members) {
    auto archive =
        std::make_shared<Archive>(path, members, /*allow_foreign=*/!settings_.signing_key.empty());
    const std::lock_guard lock(mutex_);
    archives_.insert(archives_.begin(), std::move(archive));
    has_archives_.store(true, std::memory_order_release);
  }

  CacheStatistics statistics() const {
    const auto load = [](const std::atomic<uint64_t>& counter) {
      return counter.load(std::memory_order_relaxed);
    };
    CacheStatistics out;
    for (size_t i = 0; i < kTiers; ++i) {
      const TierState& tier = tiers_[i];
      out.tiers[i] = {load(tier.hits), load(tier.stores), load(tier.bytes_read),
                      load(tier.bytes_written), static_cast<double>(load(tier.read_ns)) * 1e-9};
      out.finds += out.tiers[i].hits;
    }
    for (size_t i = 0; i < misses_.size(); ++i) {
      if (const uint64_t n = load(misses_[i]); n != 0) {
        out.misses[to_string(static_cast<EntryProblem>(i))] = n;
        out.finds += n;
      }
    }
    out.late_hits = load(late_hits_);
    out.waits = load(waits_);
    out.wait_seconds = static_cast<double>(load(wait_ns_)) * 1e-9;
    out.dropped_entries = load(dropped_entries_);
    out.refused_entries = load(refused_entries_);
    out.dropped_stores = load(dropped_stores_);
    return out;
  }

  Store* store_of(Tier tier) const {
    switch (tier) {
      case Tier::kMachine:
        return machine_.get();
      case Tier::kPersistent:
        return persistent_.get();
      case Tier::kArchive:
        break;
    }
    return nullptr;
  }

  std::map<std::string, EntryProblem> verify(Tier tier) {
    std::map<std::string, EntryProblem> problems;
    Store* const store = store_of(tier);
    if (!store) return problems;
    for (const StoredEntry& entry : store->list()) {
      EntryProblem problem;
      try {
        const std::optional<Blob> bytes = store->peek(entry.name);
        if (!bytes) continue;  // removed meanwhile
        problem = check(entry.name, bytes->bytes());
      } catch (const EntryError& error) {
        problem = error.problem();
      }
      if (problem != EntryProblem::kNone) problems.emplace(entry.name, problem);
    }
    return problems;
  }

  EntryProblem import_entry(const std::string& name, std::string_view bytes) {
    const EntryProblem problem = check(name, bytes);
    if (problem != EntryProblem::kNone) return problem;
    for (const Tier tier : {Tier::kMachine, Tier::kPersistent}) {
      if (Store* const store = store_of(tier)) {
        store->put(name, bytes);
        count_put(tier, *store, bytes.size());
      }
    }
    return EntryProblem::kNone;
  }

  uint64_t clear(Tier tier) {
    Store* const store = store_of(tier);
    if (!store) return 0;
    const std::vector<StoredEntry> entries = store->list();
    for (const StoredEntry& entry : entries) store->remove(entry.name);
    store->prune(0);  // what dead writers left
    return entries.size();
  }

  void say_notes() {
    if (notes_said_.exchange(true)) return;
    for (const std::string& note : settings_.notes) say(note);
  }

 private:
  TierState& state(Tier tier) { return tiers_[static_cast<size_t>(tier)]; }

  bool persistent_slow() const { return persistent_ && persistent_->slow(); }

  uint64_t limit_of(Tier tier) const {
    return tier == Tier::kMachine ? settings_.machine_bytes : settings_.persistent_bytes;
  }

  void count(const Lookup& result) {
    std::atomic<uint64_t>& counter =
        result ? state(result.hit->tier).hits : misses_[static_cast<size_t>(result.reason)];
    counter.fetch_add(1, std::memory_order_relaxed);
  }

  void count_put(Tier tier, const Store& store, size_t bytes) {
    TierState& s = state(tier);
    s.stores.fetch_add(1, std::memory_order_relaxed);
    s.bytes_written.fetch_add(bytes, std::memory_order_relaxed);
    if (!store.wants_prune(limit_of(tier)) || s.pruning.exchange(true)) return;
    const bool submitted = upkeep_.submit([this, tier] {
      try {
        store_of(tier)->prune(limit_of(tier));
      } catch (const StoreError& error) {
        failed(tier, error, Access::kWrite);
      }
      state(tier).pruning.store(false);
    });
    if (!submitted) s.pruning.store(false);
  }

  // What is wrong with bytes that are stored, or are to be stored, under a name.
  EntryProblem check(const std::string& name, std::string_view bytes) const {
    const DecodedEntry decoded = decode_entry(bytes, nullptr, settings_.signing_key);
    if (!decoded) return decoded.problem;
    const EntryView& entry = decoded.entry;
    const EntryKey key(entry.kind, std::string(entry.scope), std::string(entry.material));
    return key.name() == name ? EntryProblem::kNone : EntryProblem::kKeyMismatch;
  }

  // Whether the name is new. Bounded: what is forgotten is at worst said twice.
  bool remember(std::unordered_set<std::string>& names, const std::string& name) {
    const std::lock_guard lock(mutex_);
    if (names.size() >= kReportedNames) names.clear();
    return names.insert(name).second;
  }

  void say_limited(const std::string& text) {
    if (const std::optional<std::string> line = lines_.admit(text)) say(*line);
  }

  // Something is wrong with a whole tier.
  void failed(Tier tier, const StoreError& error, Access access) {
    TierState& s = state(tier);
    const bool all = error.problem() == StoreProblem::kUntrusted ||
                     error.problem() == StoreProblem::kUnreachable;
    if (all || access == Access::kRead) s.pause(Access::kRead, timing_.pause_after_failure);
    if (all || access == Access::kWrite) s.pause(Access::kWrite, timing_.pause_after_failure);
    const uint32_t bit = 1u << static_cast<unsigned>(error.problem());
    if (s.warned.fetch_or(bit) & bit) return;
    const std::string what = access == Access::kRead || all ? "is not used" : "takes no programs";
    say(std::string("the ") + to_string(tier) + " cache " + what + " for now (" +
        to_string(error.problem()) + "): " + error.what());
  }

  void drop_unusable(Tier tier, const std::string& name, EntryProblem problem,
                     const std::string& detail) {
    dropped_entries_.fetch_add(1, std::memory_order_relaxed);
    // One with a wrong signature may be right for others; storing the program replaces it.
    const bool removed =
        tier != Tier::kArchive && !concerns_signatures(problem) && remove_quietly(tier, name);
    if (!remember(reported_, std::string(to_string(tier)) + name)) return;
    say_limited(std::string(removed ? "removed" : "ignored") + " an entry of the " +
                to_string(tier) + " cache, " + name + ": " + to_string(problem) +
                (detail.empty() ? "" : ", " + detail) + "; its program is compiled again");
  }

  bool remove_quietly(Tier tier, const std::string& name) {
    Store* const store = store_of(tier);
    if (!store) return false;
    try {
      store->remove(name);
      return true;
    } catch (const StoreError&) {
      return false;  // whatever it is shows when storing
    }
  }

  Lookup decode(Tier tier, const EntryKey& key, const Blob& bytes) {
    const DecodedEntry decoded = decode_entry(bytes.bytes(), &key, settings_.signing_key);
    if (!decoded) {
      drop_unusable(tier, key.name(), decoded.problem, "");
      return {std::nullopt, decoded.problem};
    }
    return {Hit{bytes.part(decoded.entry.payload), tier}, EntryProblem::kNone};
  }

  // `raw` gets all bytes of a hit's entry.
  Lookup read(Tier tier, const EntryKey& key, Blob* raw) {
    Store* const store = store_of(tier);
    TierState& s = state(tier);
    if (!store || !s.usable(Access::kRead)) return {std::nullopt, EntryProblem::kAbsent};
    const Clock::time_point start = Clock::now();
    Lookup result{std::nullopt, EntryProblem::kAbsent};
    try {
      if (const std::optional<Blob> bytes = store->get(key.name())) {
        s.bytes_read.fetch_add(bytes->size(), std::memory_order_relaxed);
        result = decode(tier, key, *bytes);
        *raw = *bytes;
      }
    } catch (const EntryError& error) {
      drop_unusable(tier, key.name(), error.problem(), error.what());
      result.reason = error.problem();
    } catch (const StoreError& error) {
      failed(tier, error, Access::kRead);
      result.reason = error.problem() == StoreProblem::kUntrusted ? EntryProblem::kUntrusted
                                                                  : EntryProblem::kUnreadable;
    } catch (const std::bad_alloc&) {
      result.reason = EntryProblem::kUnreadable;
    }
    s.read_ns.fetch_add(static_cast<uint64_t>((Clock::now() - start) / std::chrono::nanoseconds(1)),
                        std::memory_order_relaxed);
    return result;
  }

  Lookup read_archives(const EntryKey& key) {
    Lookup result{std::nullopt, EntryProblem::kAbsent};
    if (!has_archives_.load(std::memory_order_acquire)) return result;
    std::vector<Blob> candidates;
    {
      const std::lock_guard lock(mutex_);
      if (refused_.contains(key.name())) return result;
      for (const auto& archive : archives_) {
        if (std::optional<Blob> bytes = archive->get(key.name())) {
          candidates.push_back(*std::move(bytes));
        }
      }
    }
    for (const Blob& bytes : candidates) {
      state(Tier::kArchive).bytes_read.fetch_add(bytes.size(), std::memory_order_relaxed);
      result = decode(Tier::kArchive, key, bytes);
      if (result) break;
    }
    return result;
  }

  // The tiers that answer at once.
  Lookup find_fast(const EntryKey& key) {
    Blob raw;
    Lookup result = read_archives(key);
    if (result) return result;
    if (Lookup machine = read(Tier::kMachine, key, &raw)) {
      if (persistent_ && !persistent_->slow() && state(Tier::kPersistent).usable(Access::kWrite)) {
        put_in_background(key.name(), raw, 0, /*only_if_absent=*/true);
      }
      return machine;
    } else {
      note_reason(result.reason, machine.reason);
    }
    if (persistent_ && !persistent_->slow()) {
      Lookup persistent = read(Tier::kPersistent, key, &raw);
      if (persistent) {
        put(Tier::kMachine, key.name(), raw.bytes());
        return persistent;
      }
      note_reason(result.reason, persistent.reason);
    }
    return result;
  }

  void put(Tier tier, const std::string& name, std::string_view bytes) {
    Store* const store = store_of(tier);
    if (!store || !state(tier).usable(Access::kWrite)) return;
    try {
      store->put(name, bytes);
    } catch (const StoreError& error) {
      failed(tier, error, Access::kWrite);
      return;
    }
    count_put(tier, *store, bytes.size());
  }

  // Into the persistent tier. `cost`: the memory it takes while it waits.
  void put_in_background(const std::string& name, const Blob& bytes, uint64_t cost,
                         bool only_if_absent = false) {
    const auto job = [this, name, bytes, only_if_absent] {
      try {
        if (only_if_absent && persistent_->contains(name)) return;
      } catch (const StoreError& error) {
        return failed(Tier::kPersistent, error, Access::kRead);
      }
      put(Tier::kPersistent, name, bytes.bytes());
    };
    if (writer_.submit(job, cost)) return;
    if (writer_.forked() && !persistent_->slow()) return job();
    if (!only_if_absent) dropped_stores_.fetch_add(1, std::memory_order_relaxed);
  }

  // --- Slow tiers.

  // Reads the key; gives up waiting after a while. Returns the read that goes on, or null with
  // what came of it in `result`.
  std::shared_ptr<SlowRead> read_patiently(const EntryKey& key, Lookup& result) {
    std::shared_ptr<SlowRead> read = start_read(key);
    if (!read) return nullptr;
    if (!read->wait(timing_.patience)) {
      read->stop_waiting();
      return read;
    }
    const Lookup answer = *read->result();
    if (answer) {
      result = answer;
    } else {
      note_reason(result.reason, answer.reason);
    }
    return nullptr;
  }

  std::shared_ptr<SlowRead> start_read(const EntryKey& key) {
    if (readers_.forked() || !state(Tier::kPersistent).usable(Access::kRead)) return nullptr;
    if (const auto longest = readers_.longest_running(); longest && *longest > timing_.stalled) {
      failed(Tier::kPersistent,
             StoreError(StoreProblem::kUnreachable,
                        persistent_->describe() + ": a read has not ended after " +
                            std::to_string(timing_.stalled / milliseconds(1)) + " ms"),
             Access::kRead);
      return nullptr;
    }
    // Ends the read whatever becomes of the job.
    struct Ending {
      Impl* impl;
      EntryKey key;
      std::shared_ptr<SlowRead> read = std::make_shared<SlowRead>();
      Lookup result{std::nullopt, EntryProblem::kSlow};
      bool ended = false;

      ~Ending() { end(); }
      void end() {
        if (std::exchange(ended, true)) return;
        {
          const std::lock_guard lock(impl->mutex_);
          impl->reading_.erase(key.name());
        }
        if (read->finish(result) && result) {
          impl->late_hits_.fetch_add(1, std::memory_order_relaxed);
        }
      }
    };
    std::shared_ptr<Ending> ending;
    {
      const std::lock_guard lock(mutex_);
      if (const auto found = reading_.find(key.name()); found != reading_.end()) {
        return found->second;
      }
      ending = std::make_shared<Ending>(this, key);
      reading_.emplace(key.name(), ending->read);
    }
    std::shared_ptr<SlowRead> read = ending->read;
    readers_.submit([this, ending = std::move(ending)] {
      Blob raw;
      ending->result = this->read(Tier::kPersistent, ending->key, &raw);
      if (ending->result) put(Tier::kMachine, ending->key.name(), raw.bytes());
      ending->end();
    });
    return read;
  }

  // --- Other processes.

  // Null: this machine's processes do not share what they compile.
  KeyLocks* key_locks() {
    if (!machine_ || !state(Tier::kMachine).usable(Access::kRead) ||
        !state(Tier::kMachine).usable(Access::kWrite)) {
      return nullptr;  // nobody would see the entry that waiting is for
    }
    if (KeyLocks* locks = locks_.load(std::memory_order_acquire)) return locks;
    try {
      machine_->create();
      KeyLocks* const locks = &KeyLocks::of_folder(settings_.machine_folder);
      locks_.store(locks, std::memory_order_release);
      return locks;
    } catch (const StoreError& error) {
      failed(Tier::kMachine, error, Access::kWrite);
      return nullptr;
    }
  }

  // The key's lock, empty where there are no locks or the wait was too long; or a hit in `result`,
  // from whoever had it.
  KeyLock wait_for_lock(const EntryKey& key, Lookup& result) {
    KeyLocks* const locks = key_locks();
    if (!locks) return {};
    try {
      std::optional<KeyLock> lock = locks->try_lock(key.name());
      if (!lock) lock = wait_for_holder(*locks, key, result);
      // It may have been released just before, with the entry written.
      if (!result && lock) look_again(key, result);
      return result || !lock ? KeyLock() : *std::move(lock);
    } catch (const StoreError& error) {
      failed(Tier::kMachine, error, Access::kWrite);
      return {};
    }
  }

  void look_again(const EntryKey& key, Lookup& result) {
    if (!machine_->contains(key.name())) return;
    Blob raw;
    Lookup found = read(Tier::kMachine, key, &raw);
    if (found) {
      result = std::move(found);
    } else {
      note_reason(result.reason, found.reason);
    }
  }

  std::optional<KeyLock> wait_for_holder(KeyLocks& locks, const EntryKey& key, Lookup& result) {
    std::optional<KeyLock> lock;
    const Clock::time_point start = Clock::now();
    waits_.fetch_add(1, std::memory_order_relaxed);
    blocking([&] {
      for (milliseconds pause{1}; left_of(timing_.max_wait, start).count() > 0;
           pause = std::min(2 * pause, milliseconds(50))) {
        std::this_thread::sleep_for(pause);
        look_again(key, result);
        if (result) return;
        lock = locks.try_lock(key.name());
        if (lock) return;
      }
    });
    wait_ns_.fetch_add(static_cast<uint64_t>((Clock::now() - start) / std::chrono::nanoseconds(1)),
                       std::memory_order_relaxed);
    if (!result && !lock) {
      say_limited("another process has been compiling " + key.name() + " for " +
                  std::to_string(timing_.max_wait / std::chrono::seconds(1)) +
                  " s; it is compiled here as well");
    }
    return lock;
  }

  const Settings settings_;
  const Timing timing_;
  std::unique_ptr<DirectoryStore> machine_;
  std::unique_ptr<Store> persistent_;

  std::array<TierState, kTiers> tiers_;
  std::array<std::atomic<uint64_t>, static_cast<size_t>(EntryProblem::kCount)> misses_{};
  std::atomic<uint64_t> late_hits_{0}, waits_{0}, wait_ns_{0};
  std::atomic<uint64_t> dropped_entries_{0}, refused_entries_{0}, dropped_stores_{0};
  std::atomic<bool> has_archives_{false}, notes_said_{false};
  std::atomic<KeyLocks*> locks_{nullptr};
  LineLimit lines_;

  ForkSafeMutex mutex_;
  // Guarded by mutex_.
  std::vector<std::shared_ptr<Archive>> archives_;
  std::unordered_set<std::string> refused_, reported_;
  std::unordered_map<std::string, std::shared_ptr<SlowRead>> reading_;  // by name

  // Last, so that their threads end before what they use.
  Background readers_{kReaders, kWaitingReads, ~0ull};
  Background writer_{1, kWaitingWrites, kWaitingBytes};
  Background upkeep_{1, kTiers, ~0ull};
};

ProgramCache& ProgramCache::get() {
  // Never destroyed: threads may use it while the process ends.
  static ProgramCache* const cache =
      std::make_unique<ProgramCache>(Settings::from_environment()).release();
  // Not while it is being made: the log may wait for an interpreter's lock, whose holder may be
  // waiting for this cache.
  cache->impl_->say_notes();
  return *cache;
}

ProgramCache::ProgramCache(Settings settings, Timing timing)
    : ProgramCache(std::move(settings), timing, nullptr) {}

ProgramCache::ProgramCache(Settings settings, Timing timing, std::unique_ptr<Store> persistent)
    : impl_(std::make_unique<Impl>(std::move(settings), timing, std::move(persistent))) {}

ProgramCache::~ProgramCache() = default;

const Settings& ProgramCache::settings() const noexcept { return impl_->settings(); }

Lookup ProgramCache::find(const EntryKey& key) { return impl_->find(key); }

FindOrClaim ProgramCache::find_or_claim(const EntryKey& key) { return impl_->find_or_claim(key); }

void ProgramCache::store(const EntryKey& key, std::string_view payload) {
  impl_->store(key, payload);
}

void ProgramCache::drop(const EntryKey& key, const std::string& why) { impl_->drop(key, why); }

bool ProgramCache::flush(milliseconds limit) { return impl_->flush(limit); }

bool ProgramCache::shut_down(milliseconds limit) { return impl_->shut_down(limit); }

void ProgramCache::add_archive(const std::filesystem::path& path,
                               const std::vector<ArchiveMember>& members) {
  impl_->add_archive(path, members);
}

CacheStatistics ProgramCache::statistics() const { return impl_->statistics(); }

Store* ProgramCache::tier_store(Tier tier) const noexcept { return impl_->store_of(tier); }

std::map<std::string, EntryProblem> ProgramCache::verify(Tier tier) { return impl_->verify(tier); }

EntryProblem ProgramCache::import_entry(const std::string& name, std::string_view bytes) {
  return impl_->import_entry(name, bytes);
}

uint64_t ProgramCache::clear(Tier tier) { return impl_->clear(tier); }

}  // namespace torch_tpu::cache
