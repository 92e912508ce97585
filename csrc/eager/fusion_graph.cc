#include "eager/fusion_graph.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "eager/device_context.h"
#include "eager/explain.h"
#include "eager/fused_program.h"
#include "eager/generator.h"
#include "eager/graph_replay.h"
#include "eager/list_pieces.h"
#include "eager/recording_lane.h"
#include "eager/signature_history.h"
#include "runtime/batch.h"
#include "runtime/compile_service.h"
#include "runtime/hash.h"
#include "runtime/memory.h"
#include "runtime/repetition.h"
#include "runtime/runtime.h"
#include "stablehlo/composition.h"

namespace torch_tpu::eager {

namespace sh = stablehlo;

namespace {

// A graph of more operators than this is closed: compile time grows faster than the program.
constexpr size_t kMaxCalls = 2000;
// With several parts (see below), each of which has its own program, all of them.
constexpr size_t kMaxCallsOfParts = 8 * kMaxCalls;
// So many different graphs are remembered: a fused program takes more memory mappings than others
// (see find_program()).
size_t max_graphs() { return std::max<size_t>(16, max_programs() / 8); }

// What a graph is equal by: programs, operands, what leaves it, what it may take over.
using Structure = std::vector<uint64_t>;

struct StructureHash {
  size_t operator()(const Structure& s) const {
    // Computed while recording and put at the end: see Graph::close.
    return s.back();
  }
};

struct Fused {
  runtime::CompiledProgramPtr program;
  std::vector<int64_t> taken_over;  // inputs, where nobody else holds them
  uint64_t last_used = 0;           // counted in graphs
};
// Of a device: threads that record the same have the same programs.
struct FusedTable {
  std::mutex mutex;  // taken while a graph's is held
  std::unordered_map<Structure, Fused, StructureHash> graphs;
};

// Drops the quarter that was not used for longest.
void evict(FusedTable& table) {
  std::vector<uint64_t> ages;
  for (const auto& [structure, fused] : table.graphs) ages.push_back(fused.last_used);
  const auto quarter = ages.begin() + static_cast<std::ptrdiff_t>(ages.size() / 4);
  std::nth_element(ages.begin(), quarter, ages.end());
  std::erase_if(table.graphs, [&](const auto& entry) { return entry.second.last_used < *quarter; });
}

class Graph;

// The values of a graph that is not closed yet ask for it to be closed.
class OpenBatch final : public runtime::Batch {
 public:
  OpenBatch(Graph& graph, uint64_t number) : graph_(graph), number_(number) {}
  void demand() const override;
  void begin() const override;
  size_t operators() const override { return operators_; }
  void set_operators(size_t n) { operators_ = n; }
  uint64_t number() const { return number_; }  // of the graph, when it was open
  void settle() { settled_.store(true, std::memory_order_release); }

 private:
  Graph& graph_;
  const uint64_t number_;
  size_t operators_ = 0;
  // What is submitted now comes after it. Then the graph's locks must not be asked for: whoever
  // submits what reads this batch holds one.
  std::atomic<bool> settled_{false};

  void begin(CutReason reason) const;
};

std::atomic<GraphStep>& step_to_fail() {
  static std::atomic<GraphStep> step{GraphStep::kNone};
  return step;
}

void injected_failure(GraphStep step) {
  if (step_to_fail().load(std::memory_order_relaxed) != step) [[likely]] {
    return;
  }
  step_to_fail().store(GraphStep::kNone, std::memory_order_relaxed);
  throw sh::BuildError("a failure was asked for");
}

// What becomes one program. Mostly there is one part, with all of the graph. But where operators
// are called for pieces of long lists (list_pieces.h), what is done to a piece is a part; it does
// not wait for other parts of its phase, only for earlier ones.
struct Part {
  explicit Part(std::shared_ptr<OpenBatch> of) : batch(std::move(of)) {}

  uint32_t phase = 0;
  uint32_t piece = 0;  // of the lists; 0: what was called as a whole
  std::shared_ptr<OpenBatch> batch;
  std::deque<Call> calls;
  std::vector<uint32_t> operands;
  std::vector<runtime::DeviceBufferPtr> inputs, values;
  // The inputs that also have a place in another part.
  std::unordered_map<const runtime::DeviceBuffer*, uint32_t> shared;
  Structure structure;
  uint64_t hash = 0;
  // Once it is closed:
  std::shared_ptr<GraphCalls> what = std::make_shared<GraphCalls>();
  bool known = false;  // and has come before
  std::exception_ptr error;

  void add_word(uint64_t word) {
    structure.push_back(word);
    hash = runtime::mix(hash, word);
  }
  uint32_t add_input(runtime::DeviceBufferPtr buffer) {
    inputs.push_back(std::move(buffer));
    return input_code(inputs.size() - 1);
  }
  // Somebody waits for what it computes.
  bool runs() const { return !error && !batch->outputs.empty(); }
};

class Graph {
 public:
  Graph(int device, Lane lane, FusedTable& fused) : device_(device), lane_(lane), fused_(fused) {
    open(next_parts());
  }

  void record(const ProgramPtr& program, const CallState& state, BufferList& results) {
    c10::SmallVector<runtime::DeviceBufferPtr, 8> fresh;
    for (const Program::Parameter& p : program->parameters) {
      switch (p.kind) {
        case Program::Parameter::Kind::kStorage:
          if (state.contents[p.index].buffer->is_hollow()) runtime::DeviceBuffer::refuse_hollow();
          break;
        case Program::Parameter::Kind::kNumber:
          fresh.push_back(number_buffer(state.numbers[p.index], device_));
          break;
        case Program::Parameter::Kind::kRandom:
          fresh.push_back(random_buffer(*program, state));
          break;
      }
    }
    std::string stack = wants_stacks() ? stack_source()() : std::string();
    const ListPiece piece = current_list_piece();
    const runtime::StreamId stream = current_stream(device_);
    if (has_several_lanes()) begin_elsewhere(state);
    std::unique_lock lock(mutex_);
    if (stream != stream_) {
      if (!is_empty()) cut_ = CutReason::kStream;
      stream_ = stream;
    }
    // Here and not when it came up: the call before has let go of its operands by now.
    if (cut_) {
      const CutReason reason = *cut_;
      close(lock, reason);
      lock.lock();
    }
    shares_inputs_ = has_several_lanes();
    const uint16_t number_of_part = part_for(*program, state, piece);
    Part& part = *parts_[number_of_part];
    part.calls.push_back({program, static_cast<uint32_t>(part.operands.size()), std::move(stack)});
    part.add_word(program->id);
    size_t next_fresh = 0;
    for (const Program::Parameter& p : program->parameters) {
      if (p.kind == Program::Parameter::Kind::kStorage) {
        part.operands.push_back(operand(part, number_of_part, state.contents[p.index].buffer));
      } else {
        // An input of its own, though it may be equal to another now: it need not be the next time.
        part.operands.push_back(part.add_input(std::move(fresh[next_fresh++])));
      }
      part.add_word(part.operands.back());
    }
    for (size_t i = 0; i < program->outputs.size(); ++i) {
      const Program::Output& o = program->outputs[i];
      auto value =
          std::make_shared<const runtime::DeviceBuffer>(part.batch, o.layout, device_, false);
      value->place().set({number_, value_code(part.values.size()), number_of_part, lane_});
      value->maker() = program->id;
      part.values.push_back(value);
      if (o.slot >= 0) state.storages[static_cast<size_t>(o.slot)]->set(value);
      results.push_back(std::move(value));
    }
    const size_t recorded = recorded_.fetch_add(1, std::memory_order_relaxed) + 1;
    // The pieces of a call are together what repeats itself.
    if (piece.is_last && repetition_.add(program->id)) {
      cut_ = CutReason::kRepetition;
    } else if (part.calls.size() >= kMaxCalls || recorded >= kMaxCallsOfParts) {
      cut_ = CutReason::kSize;
    }
  }

  void flush(CutReason reason) {
    std::unique_lock lock(mutex_);
    if (reason == CutReason::kRead || reason == CutReason::kSynchronize) repetition_.reset();
    if (!is_empty()) close(lock, reason);
  }

  void flush_if_open(const OpenBatch* batch, CutReason reason) {
    std::unique_lock lock(mutex_);
    if (batch->number() != number_) {
      // Another thread has closed it, and may be about to submit it.
      lock.unlock();
      const std::lock_guard order(submitting_);
      return;
    }
    repetition_.reset();
    close(lock, reason);
  }

  bool is_empty() const { return recorded_.load(std::memory_order_relaxed) == 0; }
  size_t size() const { return recorded_.load(std::memory_order_relaxed); }

 private:
  static bool wants_stacks() {
    static const bool wanted = [] {
      const char* text = std::getenv("TORCH_TPU_DEBUG_STACKS");
      return text != nullptr && std::string_view(text) == "1";
    }();
    return wanted && stack_source();
  }

 public:
  static std::function<std::string()>& stack_source() {
    static std::function<std::string()> source;
    return source;
  }

 private:
  using Parts = std::vector<std::unique_ptr<Part>>;
  // Of parts that run before, to buffers.
  using References = std::unordered_map<const runtime::DeviceBuffer*, int>;

  // The first part of a graph, whose number its batch has.
  Parts next_parts() {
    static std::atomic<uint64_t> numbers{0};
    Parts parts;
    parts.push_back(std::make_unique<Part>(std::make_shared<OpenBatch>(*this, ++numbers)));
    return parts;
  }

  void open(Parts parts) noexcept {
    parts_ = std::move(parts);
    number_ = parts_.front()->batch->number();
    part_numbers_.clear();
    cut_.reset();
    recorded_.store(0, std::memory_order_relaxed);
  }

  // A result of this graph, in whatever part.
  bool is_own_value(const runtime::GraphPlace& place) const {
    return place.graph() == number_ && is_value(place.code());
  }

  // What other threads have recorded runs before this reads it. Without this graph's lock: that of
  // the other graph is taken, and then perhaps of further ones.
  void begin_elsewhere(const CallState& state) const {
    for (const Contents& contents : state.contents) {
      if (contents.buffer && contents.buffer->place().graph() != number_) contents.buffer->begin();
    }
  }

  uint16_t part_for(const Program& program, const CallState& state, const ListPiece& piece) {
    if (piece.number == 0 && parts_.size() == 1) [[likely]] {
      return 0;
    }
    uint32_t phase = 0;
    for (const Program::Parameter& p : program.parameters) {
      if (p.kind != Program::Parameter::Kind::kStorage) continue;
      const runtime::GraphPlace& place = state.contents[p.index].buffer->place();
      if (!is_own_value(place)) continue;
      const Part& maker = *parts_[place.part()];
      phase = std::max(phase, maker.phase + (maker.piece == piece.number ? 0 : 1));
    }
    if (phase == 0 && piece.number == 0) return 0;
    const auto [it, is_new] = part_numbers_.try_emplace(uint64_t{phase} << 32 | piece.number,
                                                        static_cast<uint16_t>(parts_.size()));
    if (is_new) {
      auto part = std::make_unique<Part>(std::make_shared<OpenBatch>(*this, number_));
      part->phase = phase;
      part->piece = piece.number;
      parts_.push_back(std::move(part));
    }
    return it->second;
  }

  uint32_t operand(Part& part, uint16_t number_of_part, const runtime::DeviceBufferPtr& buffer) {
    runtime::GraphPlace& place = buffer->place();
    if (place.graph() == number_ && place.part() == number_of_part) return place.code();
    if (parts_.size() == 1 && !shares_inputs_) [[likely]] {
      const uint32_t code = part.add_input(buffer);
      place.set({number_, code, number_of_part, lane_});
      return code;
    }
    const auto [it, is_new] = part.shared.try_emplace(buffer.get());
    if (is_new) it->second = part.add_input(buffer);
    if (!shares_inputs_ && !is_own_value(place)) {
      place.set({number_, it->second, number_of_part, lane_});
    }
    return it->second;
  }

  // Afterwards nothing is recorded, and what went wrong is the error of the values that were. The
  // lock is released: running may take long, and waiting needs it.
  void close(std::unique_lock<std::mutex>& lock, CutReason reason) {
    Parts next = next_parts();  // what throws here leaves everything as it is; moving does not
    Parts parts = std::exchange(parts_, {});
    std::ranges::stable_sort(parts, {}, [](const auto& part) { return part->phase; });
    References earlier;
    if (parts.size() > 1) {
      for (const auto& part : parts) {
        for (const runtime::DeviceBufferPtr& input : part->inputs) ++earlier[input.get()];
      }
    }
    // From the end, so that it is known what the later ones need of the earlier ones.
    for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
      try {
        if (!earlier.empty()) {
          for (const runtime::DeviceBufferPtr& input : (*part)->inputs) --earlier[input.get()];
        }
        fill(**part, earlier);
      } catch (...) {
        (*part)->error = std::current_exception();
      }
    }
    for (const auto& part : parts) {
      if (part->runs()) explain(*part, reason);
    }
    open(std::move(next));
    const auto finish = [](Part& part) {
      part.batch->settle();
      part.batch->finish(part.error);
    };
    if (std::ranges::none_of(parts, [](const auto& part) { return part->runs(); })) {
      for (const auto& part : parts) part->batch->settle();
      lock.unlock();
      for (const auto& part : parts) finish(*part);
      return;
    }
    // Others may record again, but what they close is submitted after this.
    const std::lock_guard order(submitting_);
    lock.unlock();
    for (const auto& part : parts) {
      if (!part->runs()) {  // or nobody wants any of it
        finish(*part);
        continue;
      }
      try {
        injected_failure(GraphStep::kSubmit);
        runtime::submit(part->batch);
      } catch (...) {
        part->batch->finish(std::current_exception());
      }
      part->batch->settle();
    }
  }

  // All that running needs. Values that nobody else holds stay in the part.
  void fill(Part& part, const References& earlier) {
    GraphCalls& what = *part.what;
    OpenBatch& batch = *part.batch;
    what.calls = std::move(part.calls);
    what.operands = std::move(part.operands);
    batch.inputs = std::move(part.inputs);
    batch.device = device_;
    batch.stream = stream_;
    batch.set_operators(what.calls.size());
    const bool wanted = std::ranges::any_of(
        part.values, [](const runtime::DeviceBufferPtr& value) { return value.use_count() > 1; });
    if (!wanted) {
      batch.inputs.clear();  // earlier parts need not compute them
      return;
    }
    {
      const std::lock_guard lock(fused_.mutex);
      if (what.calls.size() == 1) {
        fill_single(part);
      } else {
        fill_fused(part, earlier);
      }
      if (fused_.graphs.size() > max_graphs()) evict(fused_);
    }
    batch.is_awaited = wants_stacks();
    batch.recover = [what = part.what](runtime::Batch& b, const std::exception_ptr& error) {
      replay(*what, b, error);
    };
  }

  // One operator: the program that strict mode has for it, with all of its results.
  void fill_single(Part& part) {
    GraphCalls& what = *part.what;
    OpenBatch& batch = *part.batch;
    const Program& program = *what.calls[0].program;
    part.structure.push_back(part.hash);
    Fused& fused = fused_.graphs[part.structure];
    fused.last_used = number_;
    part.known = fused.program != nullptr;
    fused.program = batch.program = program.executable;
    // An input for each parameter, also where several are the same array.
    std::vector<runtime::DeviceBufferPtr> inputs;
    for (size_t k = 0; k < program.parameters.size(); ++k) {
      inputs.push_back(batch.inputs[what.operands[k] >> 1]);
      what.operands[k] = input_code(k);
      if (program.parameters[k].donated) batch.donated.push_back(static_cast<int64_t>(k));
    }
    batch.inputs = std::move(inputs);
    for (size_t i = 0; i < part.values.size(); ++i) what.live.push_back(static_cast<uint32_t>(i));
    batch.outputs = std::move(part.values);
  }

  void fill_fused(Part& part, const References& earlier) {
    GraphCalls& what = *part.what;
    OpenBatch& batch = *part.batch;
    for (size_t i = 0; i < part.values.size(); ++i) {
      if (part.values[i].use_count() == 1) continue;
      what.live.push_back(static_cast<uint32_t>(i));
      batch.outputs.push_back(std::move(part.values[i]));
    }
    for (const uint32_t v : what.live) part.add_word(v);
    // What becomes of them follows from the rest, so that it is worked out once.
    const std::vector<uint32_t> given_up = inputs_given_up(batch, earlier);
    for (const uint32_t i : given_up) part.add_word(uint64_t{i} << 32);
    part.structure.push_back(part.hash);
    const auto it = fused_.graphs.try_emplace(part.structure).first;
    Fused& fused = it->second;
    fused.last_used = number_;
    part.known = fused.program != nullptr;
    try {
      if (!part.known) {
        injected_failure(GraphStep::kCompose);
        const std::vector<sh::ComposedAlias> aliases = find_aliases(batch, what, given_up);
        fused.taken_over.clear();
        for (const sh::ComposedAlias& a : aliases) fused.taken_over.push_back(a.parameter);
        fused.program = runtime::prepare(compose(batch, what, aliases), describe(what));
      }
      batch.program = fused.program;
      batch.donated = fused.taken_over;
    } catch (...) {
      // Then the operators are run one by one, as when running fails.
      fused_.graphs.erase(it);
      batch.program = runtime::CompiledProgram::failed(describe(what), std::current_exception());
    }
  }

  static void explain(const Part& part, CutReason reason) {
    explain_graph(reason, part.known, part.hash, part.batch->program,
                  [&] { return form_of(*part.what, *part.batch); });
  }

  // Inputs that only the graph holds, of a result's type. What runs before it will have let go: it
  // must not make another program.
  std::vector<uint32_t> inputs_given_up(const runtime::Batch& batch,
                                        const References& earlier) const {
    std::unordered_set<const runtime::Layout*> wanted;
    for (const runtime::DeviceBufferPtr& output : batch.outputs) {
      if (output->layout()->numel > 0) wanted.insert(output->layout());
    }
    std::vector<uint32_t> out;
    for (size_t i = 0; i < batch.inputs.size(); ++i) {
      const runtime::DeviceBufferPtr& input = batch.inputs[i];
      int going = input->queued().load();
      if (is_own_value(input->place())) ++going;  // its maker's
      if (const auto it = earlier.find(input.get()); it != earlier.end()) going += it->second;
      if (input.use_count() - going > 1) continue;
      if (wanted.contains(input->layout())) out.push_back(static_cast<uint32_t>(i));
    }
    return out;
  }

  const int device_;
  const Lane lane_;
  std::mutex mutex_;
  std::mutex submitting_;            // taken while mutex_ is held
  std::atomic<uint64_t> number_{0};  // changes while mutex_ is held
  Parts parts_;                      // the first one is that of phase 0 and no piece
  std::unordered_map<uint64_t, uint16_t> part_numbers_;  // the others, by phase and piece
  std::optional<CutReason> cut_;                         // due before the next call
  runtime::StreamId stream_ = 0;                         // of what is recorded
  // Others have inputs of this graph in theirs: a buffer's place cannot be where it is looked up.
  bool shares_inputs_ = false;
  std::atomic<size_t> recorded_{0};
  runtime::RepetitionDetector repetition_;
  FusedTable& fused_;
};

// The graphs of a device.
class DeviceGraphs {
 public:
  explicit DeviceGraphs(int device) : device_(device) {}

  Graph* find(Lane lane) const { return lanes_[lane].load(std::memory_order_acquire); }

  Graph& of(Lane lane) {
    if (Graph* graph = find(lane)) return *graph;
    const std::lock_guard lock(mutex_);
    if (Graph* graph = find(lane)) return *graph;
    Graph* graph = std::make_unique<Graph>(device_, lane, fused_).release();
    lanes_[lane].store(graph, std::memory_order_release);
    return *graph;
  }

  template <typename Function>
  void for_each(Function function) const {
    for (Lane lane = 0; lane < kMaxLanes; ++lane) {
      if (Graph* graph = find(lane)) function(*graph);
    }
  }

 private:
  const int device_;
  std::mutex mutex_;
  FusedTable fused_;
  std::array<std::atomic<Graph*>, kMaxLanes> lanes_{};
};

// Made on first use, never destroyed: values may ask for their graph when the process ends.
std::array<std::atomic<DeviceGraphs*>, runtime::kMaxDevices>& devices() {
  static std::array<std::atomic<DeviceGraphs*>, runtime::kMaxDevices> all{};
  return all;
}

DeviceGraphs* find_graphs(int device) {
  return devices().at(static_cast<size_t>(device)).load(std::memory_order_acquire);
}

DeviceGraphs& graphs_of(int device) {
  if (DeviceGraphs* graphs = find_graphs(device)) return *graphs;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (DeviceGraphs* graphs = find_graphs(device)) return *graphs;
  DeviceGraphs* graphs = std::make_unique<DeviceGraphs>(device).release();
  devices().at(static_cast<size_t>(device)).store(graphs, std::memory_order_release);
  return *graphs;
}

void flush(Graph* graph, CutReason reason) {
  if (graph && !graph->is_empty()) graph->flush(reason);
}

// The lane of a call. What an ended thread has left there does not become a part of it.
Lane lane_of(const CallState& state) {
  const LaneChoice choice = choose_lane(state);
  if (choice.is_inherited) {
    for (int device = 0; device < runtime::kMaxDevices; ++device) {
      if (const DeviceGraphs* graphs = find_graphs(device)) {
        flush(graphs->find(choice.lane), CutReason::kThreadEnded);
      }
    }
  }
  return choice.lane;
}

void OpenBatch::begin(CutReason reason) const {
  if (!settled_.load(std::memory_order_acquire)) graph_.flush_if_open(this, reason);
}

void OpenBatch::begin() const { begin(CutReason::kElsewhere); }

void OpenBatch::demand() const {
  begin(CutReason::kRead);
  Batch::demand();
}

}  // namespace

const char* to_string(CutReason reason) {
  switch (reason) {
    case CutReason::kRead:
      return "a value was read";
    case CutReason::kSynchronize:
      return "synchronize";
    case CutReason::kRepetition:
      return "a repetition ended";
    case CutReason::kSize:
      return "the graph became large";
    case CutReason::kMode:
      return "the mode changed";
    case CutReason::kAlone:
      return "a program that runs by itself came";
    case CutReason::kElsewhere:
      return "a value was needed elsewhere";
    case CutReason::kStream:
      return "the stream changed";
    case CutReason::kThreadEnded:
      return "its thread has ended";
  }
  return "";
}

void record_call(const ProgramPtr& program, const CallState& state, BufferList& results) {
  // What can fail comes first: also in a forked child, which cannot use the device.
  static_cast<void>(runtime::Runtime::get());
  static_cast<void>(runtime::memory_limit(state.device));  // or with a limit nobody understands
  graphs_of(state.device).of(lane_of(state)).record(program, state, results);
}

void enqueue_call(const ProgramPtr& program, const CallState& state, BufferList& results) {
  static_cast<void>(runtime::Runtime::get());  // throws in a forked child
  const auto batch = std::make_shared<runtime::Batch>();
  batch->program = program->executable;
  batch->device = state.device;
  batch->stream = current_stream(state.device);
  size_t new_bytes = program->output_bytes;
  for (const Program::Parameter& p : program->parameters) {
    switch (p.kind) {
      case Program::Parameter::Kind::kStorage: {
        const runtime::DeviceBufferPtr& buffer = state.contents[p.index].buffer;
        if (buffer->is_hollow()) runtime::DeviceBuffer::refuse_hollow();
        if (p.donated) {
          batch->donated.push_back(static_cast<int64_t>(batch->inputs.size()));
          new_bytes -= buffer->layout()->nbytes;
        }
        batch->inputs.push_back(buffer);
        break;
      }
      case Program::Parameter::Kind::kNumber:
        batch->inputs.push_back(number_buffer(state.numbers[p.index], state.device));
        break;
      case Program::Parameter::Kind::kRandom:
        batch->inputs.push_back(random_buffer(*program, state));
        break;
    }
  }
  check_memory(state.device, new_bytes, "a program's results");
  batch->outputs_counted = true;
  for (const Program::Output& o : program->outputs) {
    results.push_back(
        std::make_shared<const runtime::DeviceBuffer>(batch, o.layout, state.device, true));
    results.back()->maker() = program->id;
    batch->outputs.push_back(results.back());
  }
  runtime::submit(batch);
  for (size_t i = 0; i < results.size(); ++i) {
    const int slot = program->outputs[i].slot;
    if (slot >= 0) state.storages[static_cast<size_t>(slot)]->set(results[i]);
  }
}

void flush_own_graph(int device, CutReason reason) {
  if (const DeviceGraphs* graphs = find_graphs(device)) {
    flush(graphs->find(current_lane()), reason);
  }
}

void flush_graph_of(const CallState& state, CutReason reason) {
  if (const DeviceGraphs* graphs = find_graphs(state.device)) {
    flush(graphs->find(lane_of(state)), reason);
  }
}

void flush_graph(int device, CutReason reason) {
  if (const DeviceGraphs* graphs = find_graphs(device)) {
    graphs->for_each([&](Graph& graph) { flush(&graph, reason); });
  }
}

void flush_graphs(CutReason reason) {
  for (int device = 0; device < runtime::kMaxDevices; ++device) flush_graph(device, reason);
}

size_t recorded_calls() {
  size_t n = 0;
  for (int device = 0; device < runtime::kMaxDevices; ++device) {
    if (const DeviceGraphs* graphs = find_graphs(device)) {
      graphs->for_each([&](const Graph& graph) { n += graph.size(); });
    }
  }
  return n;
}

void fail_next_graph(GraphStep step) { step_to_fail().store(step, std::memory_order_relaxed); }

void set_stack_source(std::function<std::string()> source) {
  Graph::stack_source() = std::move(source);
}

}  // namespace torch_tpu::eager
