// The tiers of compiled programs outside of the process's memory, asked in order: archives, the
// machine's shared memory, the persistent folder or bucket.
#pragma once

#include <array>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/archive.h"
#include "cache/blob.h"
#include "cache/entry.h"
#include "cache/key_lock.h"
#include "cache/settings.h"
#include "cache/store.h"

namespace torch_tpu::cache {

enum class Tier : uint8_t { kArchive, kMachine, kPersistent };
constexpr size_t kTiers = 3;
const char* to_string(Tier);

struct Hit {
  Blob payload;
  Tier tier;
};

struct Lookup {
  std::optional<Hit> hit;
  EntryProblem reason = EntryProblem::kNone;  // of a miss

  explicit operator bool() const noexcept { return hit.has_value(); }
};

class SlowRead;

// The right, and for other processes the promise, to compile a key: they wait while it lives
// (until max_wait). Store the program before destroying it. Movable.
class Claim {
 public:
  Claim() = default;
  Claim(Claim&&) noexcept = default;
  Claim& operator=(Claim&&) noexcept = default;

  // Whether a slow tier is still being read for this key, or was when the claim was made: then
  // the members below can give a hit while a compilation runs.
  bool reading() const noexcept { return read_ != nullptr; }
  // Without waiting; nullopt also when nothing came.
  std::optional<Hit> late_hit() const;
  // Until the read has ended, at most for `limit`.
  std::optional<Hit> wait_late_hit(std::chrono::milliseconds limit) const;
  // Called once when the read has ended, in a background thread, or here when it already has.
  void on_read(std::function<void(const Lookup&)> callback) const;

 private:
  friend class ProgramCache;
  KeyLock lock_;
  std::shared_ptr<SlowRead> read_;
};

struct FindOrClaim {
  std::optional<Hit> hit;
  std::optional<Claim> claim;                 // when there is no hit
  EntryProblem reason = EntryProblem::kNone;  // of a miss
};

struct TierStatistics {
  uint64_t hits = 0, stores = 0;
  uint64_t bytes_read = 0, bytes_written = 0;
  double read_seconds = 0;
};

struct CacheStatistics {
  uint64_t finds = 0;                        // find and find_or_claim: hits and misses
  std::array<TierStatistics, kTiers> tiers;  // by Tier
  std::map<std::string, uint64_t> misses;    // by to_string(EntryProblem)
  uint64_t late_hits = 0;                    // entries that came after a miss had been given
  uint64_t waits = 0;                        // for another process that compiles the key
  double wait_seconds = 0;
  uint64_t dropped_entries = 0;  // unusable
  uint64_t refused_entries = 0;  // fine, but the plugin did not take them
  uint64_t dropped_stores = 0;   // the background had too much to do
};

class ProgramCache {
 public:
  struct Timing {                                 // the defaults are right; tests shorten them
    std::chrono::milliseconds patience{50};       // for a slow tier, before a claim
    std::chrono::milliseconds max_wait{600'000};  // for another process
    std::chrono::milliseconds pause_after_failure{60'000};
    std::chrono::milliseconds stalled{10'000};  // a read that takes longer: unreachable
  };

  // The process's one, made from the environment at the first call; never destroyed. Throws
  // std::invalid_argument for a variable that makes no sense.
  static ProgramCache& get();

  explicit ProgramCache(Settings settings) : ProgramCache(std::move(settings), Timing{}) {}
  ProgramCache(Settings settings, Timing timing);
  // Gives `persistent` instead of what the settings say.
  ProgramCache(Settings settings, Timing timing, std::unique_ptr<Store> persistent);
  ~ProgramCache();  // waits for what runs in the background, and drops what waits for it
  ProgramCache(const ProgramCache&) = delete;
  ProgramCache& operator=(const ProgramCache&) = delete;

  const Settings& settings() const noexcept;

  // --- Programs. None of these throws; what goes wrong is a miss and a line in the log.
  Lookup find(const EntryKey& key);
  // A hit, or the claim to compile the key. While another process has the claim this waits for
  // its entry. The caller sees to it that a process asks once per key at a time; otherwise the
  // second thread waits for the first.
  FindOrClaim find_or_claim(const EntryKey& key);
  // Tier 2 at once, tier 3 in the background.
  void store(const EntryKey& key, std::string_view payload);
  // The plugin refused the payload: `why` goes to the log.
  void drop(const EntryKey& key, const std::string& why);
  // Until everything is written, at most for `limit`; false when it was not.
  bool flush(std::chrono::milliseconds limit);
  // As flush, then ends what runs in the background for good: no hook is called afterwards when
  // this gives true. For the end of the process.
  bool shut_down(std::chrono::milliseconds limit);

  // Asked before the other tiers, the latest first. Throws StoreError.
  void add_archive(const std::filesystem::path& path, const std::vector<ArchiveMember>& members);

  CacheStatistics statistics() const;

  // --- Tools. They throw StoreError, and may take long.
  // The store of a tier; null when the tier is off (always for archives).
  Store* tier_store(Tier tier) const noexcept;
  // The problem of every unusable entry of a tier, by name.
  std::map<std::string, EntryProblem> verify(Tier tier);
  // Adds an entry's bytes, as a store of the tier gave them, to tiers 2 and 3. Not one to be
  // trusted as it comes: it is decoded first.
  EntryProblem import_entry(const std::string& name, std::string_view bytes);
  // Removes all entries of a tier; returns how many.
  uint64_t clear(Tier tier);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace torch_tpu::cache
