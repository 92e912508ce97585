#include "eager/moving_views.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "runtime/hash.h"

namespace torch_tpu::eager {

namespace {

// So many starts get a program of their own, which can be a little faster.
constexpr int kOwnPrograms = 4;
// Signatures whose starts are counted at a time.
constexpr size_t kMaxCounted = size_t{1} << 16;
// Takes the offset's place in the key; no offset is as large.
constexpr uint64_t kMoves = ~uint64_t{0};

using Key = std::vector<uint64_t>;

struct KeyHash {
  size_t operator()(const Key& key) const {
    uint64_t h = key.size();
    for (const uint64_t word : key) h = runtime::mix(h, word);
    return h;
  }
};

// Which signatures move. Threads look into copies of their own.
struct Signatures {
  std::mutex mutex;
  std::unordered_map<Key, int, KeyHash> starts;  // compiled so far
  std::unordered_set<Key, KeyHash> moving;
  std::unordered_set<Key, KeyHash> still;  // never move
  std::atomic<uint64_t> epoch{0};          // counts the changes of `moving`
};

Signatures& signatures() {
  static Signatures s;
  return s;
}

bool moves(const Key& key) {
  struct Local {
    std::unordered_set<Key, KeyHash> moving;
    uint64_t epoch = 0;
  };
  thread_local Local local;
  Signatures& all = signatures();
  const uint64_t epoch = all.epoch.load(std::memory_order_acquire);
  if (local.epoch != epoch) {
    const std::lock_guard lock(all.mutex);
    local.moving = all.moving;
    local.epoch = all.epoch.load(std::memory_order_relaxed);
  }
  return local.moving.contains(key);
}

Key without_starts(const CallState& state) {
  Key key = state.key;
  for (const CallState::PartialView& view : state.partial_views) key[view.offset_place] = kMoves;
  return key;
}

std::optional<lowering::BaseBox> box_of(const CallState& state,
                                        const CallState::PartialView& view) {
  // The key holds: ..., offset, sizes, strides.
  const auto* words = reinterpret_cast<const int64_t*>(state.key.data() + view.offset_place);
  return lowering::base_box(state.contents[view.slot].layout->type.dims, {words + 1, view.rank},
                            {words + 1 + view.rank, view.rank}, words[0]);
}

}  // namespace

stablehlo::ElementType start_type(const lowering::BaseBox& box) {
  const auto end = box.base.begin() + static_cast<ptrdiff_t>(box.rank);
  const bool small = std::all_of(box.base.begin(), end, [](int64_t size) {
    return size <= std::numeric_limits<int32_t>::max();
  });
  return small ? stablehlo::ElementType::kS32 : stablehlo::ElementType::kS64;
}

void let_views_move(CallState& state) {
  if (state.partial_views.empty() || signatures().epoch.load(std::memory_order_relaxed) == 0)
      [[likely]] {
    return;
  }
  Key key = without_starts(state);
  if (!moves(key)) return;
  std::vector<CallState::MovingView> moving;
  for (const CallState::PartialView& view : state.partial_views) {
    const std::optional<lowering::BaseBox> box = box_of(state, view);
    if (!box) return;  // here it runs over an edge: a signature of its own
    moving.push_back({view.tensor, 0, *box});
  }
  for (CallState::MovingView& view : moving) {
    view.first_number = static_cast<uint32_t>(state.numbers.size());
    for (size_t k = 0; k < view.box.rank; ++k) {
      if (!view.box.moves(k)) continue;
      state.numbers.push_back(
          {start_type(view.box), {static_cast<uint64_t>(view.box.start[k]), 0}});
    }
  }
  state.moving = std::move(moving);
  state.key = std::move(key);
}

void count_starts(const OperatorInfo& info, const CallState& state) {
  if (state.partial_views.empty() || !state.moving.empty()) return;
  bool written = false;
  for (const ArgumentInfo& a : info.arguments) written |= a.written;
  // Whether two views of one storage overlap is found out when a call is compiled.
  if (written && state.num_tensors != state.storages.size()) return;
  bool can_move = false;
  for (const CallState::PartialView& view : state.partial_views) {
    const std::optional<lowering::BaseBox> box = box_of(state, view);
    if (!box) return;
    for (size_t k = 0; k < box->rank; ++k) can_move |= box->moves(k);
  }
  if (!can_move) return;
  Signatures& all = signatures();
  Key key = without_starts(state);
  const std::lock_guard lock(all.mutex);
  if (all.starts.size() >= kMaxCounted) all.starts.clear();
  if (all.still.contains(key) || ++all.starts[key] < kOwnPrograms) return;
  all.starts.erase(key);
  all.moving.insert(std::move(key));
  all.epoch.fetch_add(1, std::memory_order_release);
}

uint64_t moving_views_epoch() { return signatures().epoch.load(std::memory_order_relaxed); }

void keep_views_still(const CallState& state) {
  Signatures& all = signatures();
  const std::lock_guard lock(all.mutex);
  all.moving.erase(state.key);
  all.still.insert(state.key);
  all.epoch.fetch_add(1, std::memory_order_release);
}

}  // namespace torch_tpu::eager
