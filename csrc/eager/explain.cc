#include "eager/explain.h"

#include <c10/util/Exception.h>

#include <atomic>
#include <deque>
#include <mutex>

namespace torch_tpu::eager {

namespace {

constexpr size_t kMaxNotes = 100'000;

struct Notes {
  std::mutex mutex;
  std::deque<DispatchNote> notes;
  size_t dropped = 0;  // before the first one
};

Notes& all() {
  static Notes& notes = *std::make_unique<Notes>().release();
  return notes;
}

std::atomic<int> active{0};

}  // namespace

void start_explaining() { active.fetch_add(1); }
void stop_explaining() { active.fetch_sub(1); }
bool explaining() { return active.load(std::memory_order_relaxed) > 0; }

size_t dispatch_note_count() {
  Notes& n = all();
  const std::lock_guard lock(n.mutex);
  return n.dropped + n.notes.size();
}

std::vector<DispatchNote> dispatch_notes(size_t from) {
  Notes& n = all();
  const std::lock_guard lock(n.mutex);
  const size_t begin = from > n.dropped ? from - n.dropped : 0;
  if (begin >= n.notes.size()) return {};
  return {n.notes.begin() + static_cast<std::ptrdiff_t>(begin), n.notes.end()};
}

void explain_dispatch(CutReason reason, bool known, const runtime::CompiledProgramPtr& program,
                      size_t count, const std::function<std::string(size_t)>& call) {
  if (!explaining()) return;
  DispatchNote note;
  note.reason = to_string(reason);
  note.known = known;
  note.program = program;
  for (size_t i = 0; i < count; ++i) note.calls.push_back(call(i));
  Notes& n = all();
  const std::lock_guard lock(n.mutex);
  n.notes.push_back(std::move(note));
  if (n.notes.size() > kMaxNotes) {
    n.notes.pop_front();
    ++n.dropped;
  }
}

void explain_replay(const std::string& calls, const std::exception_ptr& error) {
  std::string why;
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    why = e.what();
  }
  TORCH_WARN("a fused program failed and was run operator by operator instead (", calls,
             "): ", why);
}

}  // namespace torch_tpu::eager
