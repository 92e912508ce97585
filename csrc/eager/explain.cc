#include "eager/explain.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <mutex>
#include <unordered_map>

#include "eager/device_context.h"
#include "eager/mode.h"
#include "eager/signature_history.h"
#include "runtime/memory.h"

namespace torch_tpu::eager {

namespace {

constexpr size_t kMaxNotes = 100'000;
// So many graphs are kept to compare new ones with.
constexpr size_t kMaxGraphs = 64;
// Beyond this many programs those that are gone are forgotten.
constexpr size_t kMaxPrograms = 16'384;

// A graph that was compiled, with what its operators are called.
struct KnownGraph {
  GraphForm form;
  CallNames names;
};

struct Notes {
  std::mutex mutex;
  std::deque<DispatchNote> notes;
  size_t dropped = 0;                                      // before the first one
  std::unordered_map<uint64_t, CallNames> names_of_graph;  // by its key, while explaining
  std::deque<KnownGraph> graphs;                           // the oldest first
  std::unordered_map<uint64_t, std::string> differences;   // of compiled ones, while explaining
  std::unordered_map<const runtime::CompiledProgram*, std::weak_ptr<runtime::CompiledProgram>>
      programs;  // that a signature has

  void add(DispatchNote note) {
    note.live_bytes = runtime::memory_counters(current_device()).bytes.load();
    notes.push_back(std::move(note));
    if (notes.size() > kMaxNotes) {
      notes.pop_front();
      ++dropped;
    }
  }

  // Why the first of the compiled graphs in it that are new is so.
  std::string difference_of_compiled(const KnownGraph& graph) const {
    for (size_t i = 0; i < graph.form.calls.size(); ++i) {
      const auto it = differences.find(graph.form.calls[i].program);
      if (it != differences.end()) return (*graph.names)[i] + ": " + it->second;
    }
    return "";
  }

  // Whether a signature seen before has the program.
  bool is_shared(const runtime::CompiledProgramPtr& program) {
    if (programs.size() > kMaxPrograms) {
      std::erase_if(programs, [](const auto& entry) { return entry.second.expired(); });
    }
    std::weak_ptr<runtime::CompiledProgram>& entry = programs[program.get()];
    if (!entry.expired()) return true;
    entry = program;
    return false;
  }
};

Notes& all() {
  static Notes& notes = *std::make_unique<Notes>().release();
  return notes;
}

std::atomic<int> active{0};

// Without the types of its operands.
std::string_view operator_name(const std::string& call) {
  return std::string_view(call).substr(0, call.find('('));
}

std::string ordinal(size_t call, const std::string& name) {
  return "operator " + std::to_string(call) + " (" + name + ")";
}

// What makes a graph differ from a known one. Operators that are called the same stand for each
// other, though their operands may have other types.
class GraphComparison {
 public:
  GraphComparison(const KnownGraph& now, const KnownGraph& before) : now_(now), before_(before) {
    const size_t n = std::min(now.form.calls.size(), before.form.calls.size());
    while (similar_ < n &&
           operator_name((*now.names)[similar_]) == operator_name((*before.names)[similar_])) {
      ++similar_;
    }
    while (equal_ < similar_ && same_call(equal_)) ++equal_;
  }

  // Larger is nearer.
  std::pair<size_t, size_t> nearness() const { return {similar_, equal_}; }

  std::string first() const {
    const auto &now = *now_.names, &before = *before_.names;
    if (equal_ == now.size() && equal_ == before.size()) return what_leaves();
    if (equal_ == before.size()) {
      return "it goes on with " + ordinal(equal_, now[equal_]) + " where a known one ends";
    }
    if (equal_ == now.size()) {
      return "it ends where a known one goes on with " + ordinal(equal_, before[equal_]);
    }
    const uint64_t mine = now_.form.calls[equal_].program;
    const uint64_t its = before_.form.calls[equal_].program;
    if (mine == its) return other_operands();
    if (equal_ < similar_) {
      if (const std::string difference = signature_difference(mine, its); !difference.empty()) {
        return ordinal(equal_, now[equal_]) + ": " + difference;
      }
    }
    return ordinal(equal_, now[equal_]) + ", was " + before[equal_];
  }

 private:
  static std::span<const uint32_t> operands(const GraphForm& form, size_t call) {
    const size_t begin = form.calls[call].first_operand;
    const size_t end =
        call + 1 < form.calls.size() ? form.calls[call + 1].first_operand : form.operands.size();
    return std::span(form.operands).subspan(begin, end - begin);
  }

  bool same_call(size_t i) const {
    if (now_.form.calls[i].program != before_.form.calls[i].program) return false;
    return std::ranges::equal(operands(now_.form, i), operands(before_.form, i));
  }

  static size_t call_of_value(const GraphForm& form, uint32_t value) {
    const auto after =
        std::ranges::upper_bound(form.calls, value, {}, &GraphForm::Call::first_value);
    return static_cast<size_t>(after - form.calls.begin()) - 1;
  }
  static std::string value_name(const KnownGraph& graph, uint32_t value) {
    const size_t call = call_of_value(graph.form, value);
    return "a result of " + ordinal(call, (*graph.names)[call]);
  }
  static std::string operand_name(const KnownGraph& graph, uint32_t code) {
    if ((code & 1) != 0) return value_name(graph, code >> 1);
    return "input " + std::to_string(code >> 1) + " of the graph";
  }

  std::string other_operands() const {
    const auto mine = operands(now_.form, equal_), its = operands(before_.form, equal_);
    size_t k = 0;
    while (k + 1 < std::min(mine.size(), its.size()) && mine[k] == its[k]) ++k;
    return ordinal(equal_, (*now_.names)[equal_]) + ": operand " + std::to_string(k) + " is " +
           operand_name(now_, mine[k]) + ", was " + operand_name(before_, its[k]);
  }

  std::string what_leaves() const {
    const std::vector<uint32_t>&mine = now_.form.live, &its = before_.form.live;
    const auto [a, b] = std::ranges::mismatch(mine, its);
    if (a != mine.end() && (b == its.end() || *a < *b)) {
      return value_name(now_, *a) + " is still held when the graph ends, was not";
    }
    if (b != its.end()) return value_name(before_, *b) + " is not held any more, was";
    const std::vector<uint32_t>&given = now_.form.donated, &had = before_.form.donated;
    const auto [c, d] = std::ranges::mismatch(given, had);
    if (c != given.end() && (d == had.end() || *c < *d)) {
      return "the memory of input " + std::to_string(*c) + " is taken over, was not";
    }
    if (d != had.end()) {
      return "the memory of input " + std::to_string(*d) + " is not taken over, was";
    }
    return "nothing in the graph: its program had been dropped, or a setting changed";
  }

  const KnownGraph &now_, &before_;
  size_t similar_ = 0;  // calls at the beginning with the same operator
  size_t equal_ = 0;    // that are the same
};

CallNames names_of(const GraphForm& form) {
  auto names = std::make_shared<std::vector<std::string>>();
  names->reserve(form.calls.size());
  for (const GraphForm::Call& call : form.calls) {
    names->push_back(call_of_program(call.program, *call.name));
  }
  return names;
}

// Among several that are as near, the latest.
std::string difference_to_nearest(const KnownGraph& graph, const std::deque<KnownGraph>& known) {
  const KnownGraph* nearest = nullptr;
  std::pair<size_t, size_t> best{0, 0};
  for (auto it = known.rbegin(); it != known.rend(); ++it) {
    const std::pair<size_t, size_t> nearness = GraphComparison(graph, *it).nearness();
    if (nearness <= best) continue;
    best = nearness;
    nearest = &*it;
  }
  return nearest ? GraphComparison(graph, *nearest).first() : "";
}

}  // namespace

void start_explaining() { active.fetch_add(1); }

void stop_explaining() {
  if (active.fetch_sub(1) > 1) return;
  Notes& n = all();
  const std::lock_guard lock(n.mutex);
  n.names_of_graph.clear();
  n.differences.clear();
}

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

Miss note_miss(const OperatorInfo& info, std::span<const c10::IValue> arguments, bool all_known,
               const CallState& state, const ProgramPtr& program) {
  Miss miss;
  miss.difference = note_signature(info, arguments, all_known, state, *program, explaining());
  Notes& n = all();
  const std::lock_guard lock(n.mutex);
  miss.shared = n.is_shared(program->executable);
  return miss;
}

void explain_call(const OperatorInfo& info, std::span<const c10::IValue> arguments,
                  const ProgramPtr& program, const Miss* miss) {
  DispatchNote note;
  switch (current_mode()) {
    case EagerMode::kDeferNever:
      note.reason = "strict mode: one operator";
      break;
    case EagerMode::kDeferNeverAndLaunchBlocking:
      note.reason = "debug mode: one operator";
      break;
    case EagerMode::kDeferAndFuse:
      return;  // recorded: see explain_graph()
  }
  note.calls =
      std::make_shared<const std::vector<std::string>>(1, describe_call(info, arguments, *program));
  note.program = program->executable;
  note.known = miss == nullptr;
  if (miss) {
    note.difference = miss->difference;
    note.shared = miss->shared;
  }
  Notes& n = all();
  const std::lock_guard lock(n.mutex);
  n.add(std::move(note));
}

void explain_compiled(const std::string& name, bool known, const std::string& difference,
                      const Program& program) {
  if (current_mode() == EagerMode::kDeferAndFuse) {  // recorded: see explain_graph()
    if (known || difference.empty()) return;
    Notes& n = all();
    const std::lock_guard lock(n.mutex);
    n.differences[program.id] = difference;
    return;
  }
  DispatchNote note;
  note.reason = "a compiled graph";
  note.calls = std::make_shared<const std::vector<std::string>>(1, name);
  note.program = program.executable;
  note.known = known;
  note.difference = difference;
  Notes& n = all();
  const std::lock_guard lock(n.mutex);
  n.add(std::move(note));
}

void explain_graph(CutReason reason, bool known, uint64_t key,
                   const runtime::CompiledProgramPtr& program,
                   const std::function<GraphForm()>& form) {
  const bool wanted = explaining();
  if (known && !wanted) return;
  DispatchNote note;
  note.reason = to_string(reason);
  note.known = known;
  note.program = program;
  Notes& n = all();
  if (known) {
    const std::lock_guard lock(n.mutex);
    CallNames& names = n.names_of_graph[key];
    if (!names) names = names_of(form());
    note.calls = names;
    n.add(std::move(note));
    return;
  }
  KnownGraph graph{form(), nullptr};
  graph.names = note.calls = names_of(graph.form);
  for (GraphForm::Call& call : graph.form.calls) call.name = nullptr;  // it may go
  const std::lock_guard lock(n.mutex);
  // One operator runs by its own program, which its signature's first call has made.
  note.shared = note.calls->size() == 1 ? program->ready() : n.is_shared(program);
  if (wanted) {
    note.difference = n.difference_of_compiled(graph);
    if (note.difference.empty()) note.difference = difference_to_nearest(graph, n.graphs);
    n.names_of_graph[key] = note.calls;
    n.add(std::move(note));
  }
  n.graphs.push_back(std::move(graph));
  if (n.graphs.size() > kMaxGraphs) n.graphs.pop_front();
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
