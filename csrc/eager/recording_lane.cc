#include "eager/recording_lane.h"

#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <mutex>

#include "eager/graph_calls.h"

namespace torch_tpu::eager {

namespace {

class Lanes {
 public:
  LaneChoice take() {
    const std::lock_guard lock(mutex_);
    const auto least = std::ranges::min_element(users_);
    const auto lane = static_cast<Lane>(least - users_.begin());
    const bool is_inherited = *least == 0 && lane < known_;
    ++*least;
    known_ = std::max<Lane>(known_, lane + 1);
    if (known_ > 1) several_.store(true, std::memory_order_release);
    return {lane, is_inherited};
  }
  void give_back(Lane lane) {
    const std::lock_guard lock(mutex_);
    --users_[lane];
  }
  bool several() const { return several_.load(std::memory_order_acquire); }

  std::atomic<Lane> last_used{0};

 private:
  std::mutex mutex_;
  std::array<uint32_t, kMaxLanes> users_{};  // threads
  Lane known_ = 0;                           // lanes below have been given out
  std::atomic<bool> several_{false};
};

// Never destroyed: threads may end after everything else.
Lanes& lanes() {
  static Lanes& all = *std::make_unique<Lanes>().release();
  return all;
}

class OwnLane {
 public:
  OwnLane() = default;
  ~OwnLane() {
    if (lane_ >= 0) lanes().give_back(static_cast<Lane>(lane_));
  }
  OwnLane(const OwnLane&) = delete;
  OwnLane& operator=(const OwnLane&) = delete;

  int get() const { return lane_; }
  void set(Lane lane) { lane_ = static_cast<int>(lane); }

 private:
  int lane_ = -1;
};

thread_local OwnLane own_lane;

// Where what a backward pass reads was recorded.
Lane lane_of_operands(const CallState& state) {
  for (const Contents& contents : state.contents) {
    if (!contents.buffer) continue;
    const runtime::GraphPlace& place = contents.buffer->place();
    if (is_value(place.code())) return place.lane();
  }
  return lanes().last_used.load(std::memory_order_relaxed);
}

}  // namespace

bool has_several_lanes() { return lanes().several(); }

Lane current_lane() {
  if (own_lane.get() >= 0) return static_cast<Lane>(own_lane.get());
  return lanes().last_used.load(std::memory_order_relaxed);
}

LaneChoice choose_lane(const CallState& state) {
  LaneChoice choice;
  if (own_lane.get() >= 0) [[likely]] {
    choice.lane = static_cast<Lane>(own_lane.get());
  } else if (torch::autograd::get_current_graph_task_id() >= 0) {
    return {has_several_lanes() ? lane_of_operands(state) : Lane{0}, false};
  } else {
    choice = lanes().take();
    own_lane.set(choice.lane);
  }
  if (lanes().last_used.load(std::memory_order_relaxed) != choice.lane) {
    lanes().last_used.store(choice.lane, std::memory_order_relaxed);
  }
  return choice;
}

}  // namespace torch_tpu::eager
