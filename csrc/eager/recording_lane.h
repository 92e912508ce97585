// Threads that record operators at the same time do so side by side: each has a lane, and a lane
// has a graph of its own on each device (fusion_graph.h). Were it one graph, its operators would
// come in another order each time, and nearly every program would be a new one.
#pragma once

#include <cstdint>

#include "eager/call_state.h"

namespace torch_tpu::eager {

using Lane = uint16_t;
// Threads beyond share.
inline constexpr Lane kMaxLanes = 64;

struct LaneChoice {
  Lane lane = 0;
  // The thread has just been given it, and what is recorded there is of one that has ended.
  bool is_inherited = false;
};

// The lane of what this thread calls: its own, kept until it ends. Autograd's threads have none,
// and record for the thread whose values they work on.
LaneChoice choose_lane(const CallState& state);

// The same where no call says whom it is for.
Lane current_lane();

// More than one lane has been given out. Stays true.
bool has_several_lanes();

}  // namespace torch_tpu::eager
