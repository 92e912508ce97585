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
#include "eager/generator.h"
#include "eager/signature_history.h"
#include "pjrt/error.h"
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
// So many different graphs are remembered: a fused program takes more memory mappings than others
// (see find_program()).
size_t max_graphs() { return std::max<size_t>(16, max_programs() / 8); }

// Codes of operands in a graph: inputs are even, results of its own calls odd.
constexpr uint32_t input_code(size_t i) { return static_cast<uint32_t>(i) << 1; }
constexpr uint32_t value_code(size_t i) { return static_cast<uint32_t>(i) << 1 | 1; }
constexpr bool is_value(uint32_t code) { return (code & 1) != 0; }

struct Call {
  ProgramPtr program;
  uint32_t first_operand = 0;
  std::string stack;  // of the code that called, if wanted
};

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
using FusedTable = std::unordered_map<Structure, Fused, StructureHash>;

// Drops the quarter that was not used for longest.
void evict(FusedTable& table) {
  std::vector<uint64_t> ages;
  for (const auto& [structure, fused] : table) ages.push_back(fused.last_used);
  const auto quarter = ages.begin() + static_cast<std::ptrdiff_t>(ages.size() / 4);
  std::nth_element(ages.begin(), quarter, ages.end());
  std::erase_if(table, [&](const auto& entry) { return entry.second.last_used < *quarter; });
}

class Graph;

// The values of a graph that is not closed yet ask for it to be closed.
class OpenBatch final : public runtime::Batch {
 public:
  explicit OpenBatch(Graph& graph) : graph_(graph) {}
  void demand() const override;
  void begin() const override;
  size_t operators() const override { return operators_; }
  void set_operators(size_t n) { operators_ = n; }
  void settle() { settled_.store(true, std::memory_order_release); }

 private:
  Graph& graph_;
  size_t operators_ = 0;
  // What is submitted now comes after it. Then the graph's locks must not be asked for: whoever
  // submits what reads this batch holds one.
  std::atomic<bool> settled_{false};
};

// What is known of the calls after the graph was closed, to find the one that fails.
struct Replay {
  std::deque<Call> calls;
  std::vector<uint32_t> operands;
  std::vector<uint32_t> live;  // values, in the order of the batch's outputs
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

std::string names_of(const std::deque<Call>& calls) {
  std::string out;
  size_t n = 0;
  for (const Call& call : calls) {
    if (++n > 6) return out + ", ...";
    if (!out.empty()) out += ", ";
    out += call.program->executable->what();
  }
  return out;
}

// Runs the calls one by one; the first that fails is named.
void replay(const Replay& what, runtime::Batch& batch, const std::exception_ptr& error) {
  runtime::Runtime& rt = runtime::Runtime::get();
  for (const runtime::DeviceBufferPtr& input : batch.inputs) {
    // Taken over by the run that failed: nothing to begin from.
    if (input->pjrt().is_deleted()) std::rethrow_exception(error);
  }
  std::vector<pjrt::Buffer> values;
  int64_t bytes = 0;
  for (const Call& call : what.calls) {
    const Program& program = *call.program;
    const auto explained = [&](const std::exception& e) {
      const std::string name = call_of_program(program.id, program.executable->what());
      return name + " failed in a fused program: " + e.what() +
             (call.stack.empty() ? "\nTORCH_TPU_DEBUG_STACKS=1 shows the code that called it."
                                 : "\nIt was called here:\n" + call.stack);
    };
    try {
      bytes += static_cast<int64_t>(program.output_bytes);
      if (runtime::would_exceed_limit(batch.device, bytes)) std::rethrow_exception(error);
      std::vector<PJRT_Buffer*> handles;
      std::vector<int64_t> kept;
      for (size_t k = 0; k < program.parameters.size(); ++k) {
        const uint32_t code = what.operands[call.first_operand + k];
        handles.push_back(is_value(code) ? values[code >> 1].handle()
                                         : batch.inputs[code >> 1]->handle());
        if (program.parameters[k].donated) kept.push_back(static_cast<int64_t>(k));
      }
      std::vector<PJRT_Buffer*> results(program.outputs.size(), nullptr);
      program.executable->executable().execute(handles.data(), handles.size(), results.data(), kept,
                                               rt.device(batch.device).handle);
      for (PJRT_Buffer* result : results) {
        values.push_back(pjrt::Buffer::adopt(rt.client().api(), result));
        values.back().ready().await();
      }
    } catch (const pjrt::Error& e) {
      throw pjrt::Error(e.code(), explained(e));
    } catch (const std::exception& e) {
      throw runtime::CompileError(explained(e));
    }
  }
  // One by one it works: the fused program is at fault, and the results are there.
  for (size_t i = 0; i < what.live.size(); ++i) {
    batch.fulfil(i, std::move(values[what.live[i]]));
  }
  explain_replay(names_of(what.calls), error);
}

class Graph {
 public:
  explicit Graph(int device) : device_(device), batch_(std::make_shared<OpenBatch>(*this)) {
    open();
  }

  void record(const ProgramPtr& program, const CallState& state, BufferList& results) {
    // What can fail comes first: also in a forked child, which cannot use the device.
    static_cast<void>(runtime::Runtime::get());
    static_cast<void>(runtime::memory_limit(device_));  // or with a limit nobody understands
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
    std::unique_lock lock(mutex_);
    // Here and not when it came up: the call before has let go of its operands by now.
    if (cut_) {
      const CutReason reason = *cut_;
      close(lock, reason);
      lock.lock();
    }
    calls_.push_back({program, static_cast<uint32_t>(operands_.size()), std::move(stack)});
    add_word(program->id);
    size_t next_fresh = 0;
    for (const Program::Parameter& p : program->parameters) {
      if (p.kind == Program::Parameter::Kind::kStorage) {
        operands_.push_back(operand(state.contents[p.index].buffer));
      } else {
        // An input of its own, though it may be equal to another now: it need not be the next time.
        operands_.push_back(add_input(std::move(fresh[next_fresh++])));
      }
      add_word(operands_.back());
    }
    for (size_t i = 0; i < program->outputs.size(); ++i) {
      const Program::Output& o = program->outputs[i];
      auto value = std::make_shared<const runtime::DeviceBuffer>(batch_, o.layout, device_, false);
      value->place() = {number_, value_code(values_.size())};
      value->maker() = program->id;
      values_.push_back(value);
      if (o.slot >= 0) state.storages[static_cast<size_t>(o.slot)]->set(value);
      results.push_back(std::move(value));
    }
    recorded_.fetch_add(1, std::memory_order_relaxed);
    if (repetition_.add(program->id)) {
      cut_ = CutReason::kRepetition;
    } else if (calls_.size() >= kMaxCalls) {
      cut_ = CutReason::kSize;
    }
  }

  void flush(CutReason reason) {
    std::unique_lock lock(mutex_);
    if (reason == CutReason::kRead || reason == CutReason::kSynchronize) repetition_.reset();
    if (!calls_.empty()) close(lock, reason);
  }

  void flush_if_open(const OpenBatch* batch) {
    std::unique_lock lock(mutex_);
    if (batch_.get() != batch) {
      // Another thread has closed it, and may be about to submit it.
      lock.unlock();
      const std::lock_guard order(submitting_);
      return;
    }
    repetition_.reset();
    close(lock, CutReason::kRead);
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
  // Begins a new graph; the batch is new already.
  void open() noexcept {
    static std::atomic<uint64_t> numbers{0};
    number_ = ++numbers;
    structure_.clear();
    hash_ = 0;
    cut_.reset();
    recorded_.store(0, std::memory_order_relaxed);
  }

  void add_word(uint64_t word) {
    structure_.push_back(word);
    hash_ = runtime::mix(hash_, word);
  }

  uint32_t add_input(runtime::DeviceBufferPtr buffer) {
    inputs_.push_back(std::move(buffer));
    return input_code(inputs_.size() - 1);
  }

  uint32_t operand(const runtime::DeviceBufferPtr& buffer) {
    runtime::GraphPlace& place = buffer->place();
    if (place.graph != number_) place = {number_, add_input(buffer)};
    return place.code;
  }

  // Afterwards nothing is recorded, and what went wrong is the error of the values that were. The
  // lock is released: running may take long, and waiting needs it.
  void close(std::unique_lock<std::mutex>& lock, CutReason reason) {
    // What throws here leaves everything as it is; moving does not throw.
    const auto what = std::make_shared<Replay>();
    auto next = std::make_shared<OpenBatch>(*this);
    const std::shared_ptr<OpenBatch> batch = std::exchange(batch_, std::move(next));
    std::vector<runtime::DeviceBufferPtr> values = std::exchange(values_, {});
    what->calls = std::move(calls_);
    calls_.clear();
    what->operands = std::exchange(operands_, {});
    batch->inputs = std::exchange(inputs_, {});
    std::exception_ptr error;
    try {
      fill(*batch, what, values, reason);
    } catch (...) {
      error = std::current_exception();
    }
    open();
    if (error || batch->outputs.empty()) {  // or nobody wants any of it
      batch->settle();
      lock.unlock();
      batch->finish(error);
      return;
    }
    // Others may record again, but what they close is submitted after this.
    const std::lock_guard order(submitting_);
    lock.unlock();
    try {
      injected_failure(GraphStep::kSubmit);
      runtime::submit(batch);
    } catch (...) {
      batch->finish(std::current_exception());
    }
    batch->settle();
  }

  // All that running needs. Values that nobody else holds stay in `values`.
  void fill(OpenBatch& batch, const std::shared_ptr<Replay>& what,
            std::vector<runtime::DeviceBufferPtr>& values, CutReason reason) {
    batch.device = device_;
    batch.stream = current_stream(device_);
    batch.set_operators(what->calls.size());
    for (size_t i = 0; i < values.size(); ++i) {
      if (values[i].use_count() == 1) continue;
      what->live.push_back(static_cast<uint32_t>(i));
      batch.outputs.push_back(std::move(values[i]));
    }
    if (batch.outputs.empty()) return;
    for (const uint32_t v : what->live) add_word(v);
    // What becomes of them follows from the rest, so that it is worked out once.
    const std::vector<uint32_t> given_up = inputs_given_up(batch);
    for (const uint32_t i : given_up) add_word(uint64_t{i} << 32);
    structure_.push_back(hash_);
    const auto it = fused_.try_emplace(structure_).first;
    Fused& fused = it->second;
    fused.last_used = number_;
    const bool known = fused.program != nullptr;
    try {
      if (!known) {
        injected_failure(GraphStep::kCompose);
        const std::vector<sh::ComposedAlias> aliases = find_aliases(batch, *what, given_up);
        fused.taken_over.clear();
        for (const sh::ComposedAlias& a : aliases) fused.taken_over.push_back(a.parameter);
        fused.program = runtime::prepare(compose(batch, *what, aliases), describe(*what));
      }
      batch.program = fused.program;
      batch.donated = fused.taken_over;
    } catch (...) {
      // Then the operators are run one by one, as when running fails.
      fused_.erase(it);
      batch.program = runtime::CompiledProgram::failed(describe(*what), std::current_exception());
    }
    explain_graph(reason, known, hash_, batch.program, [&] { return form_of(*what, batch); });
    if (fused_.size() > max_graphs()) evict(fused_);
    batch.is_awaited = wants_stacks();
    batch.recover = [what](runtime::Batch& b, const std::exception_ptr& error) {
      replay(*what, b, error);
    };
  }

  // Inputs that only the graph holds, of a result's type. What is queued before it will have let
  // go: it must not make another program.
  static std::vector<uint32_t> inputs_given_up(const runtime::Batch& batch) {
    std::unordered_set<const runtime::Layout*> wanted;
    for (const runtime::DeviceBufferPtr& output : batch.outputs) {
      if (output->layout()->numel > 0) wanted.insert(output->layout());
    }
    std::vector<uint32_t> out;
    for (size_t i = 0; i < batch.inputs.size(); ++i) {
      const runtime::DeviceBufferPtr& input = batch.inputs[i];
      if (input.use_count() - input->queued().load() > 1) continue;
      if (wanted.contains(input->layout())) out.push_back(static_cast<uint32_t>(i));
    }
    return out;
  }

  // Which input's memory becomes which result's: first that of the value a result replaced in
  // place, then any of its type that is not read after the result was computed. Otherwise the
  // compiler would copy the input first.
  static std::vector<sh::ComposedAlias> find_aliases(const runtime::Batch& batch,
                                                     const Replay& what,
                                                     std::span<const uint32_t> given_up) {
    constexpr uint32_t kNone = ~uint32_t{0};
    std::vector<uint32_t> replaced, made_by;  // of each value: an input or kNone, its call
    std::vector<uint32_t> last_read(batch.inputs.size(), 0);
    for (uint32_t c = 0; c < what.calls.size(); ++c) {
      const Program& program = *what.calls[c].program;
      const uint32_t* const operands = what.operands.data() + what.calls[c].first_operand;
      std::unordered_map<int, uint32_t> origins;  // of the storages it writes
      for (size_t k = 0; k < program.parameters.size(); ++k) {
        const uint32_t index = operands[k] >> 1;
        if (!is_value(operands[k])) last_read[index] = c;
        if (!program.parameters[k].donated) continue;
        origins.emplace(static_cast<int>(program.parameters[k].index),
                        is_value(operands[k]) ? replaced[index] : index);
      }
      for (const Program::Output& o : program.outputs) {
        const auto origin = origins.find(o.slot);
        replaced.push_back(origin == origins.end() ? kNone : origin->second);
        made_by.push_back(c);
      }
    }
    std::vector<bool> free_input(batch.inputs.size(), false);
    for (const uint32_t i : given_up) free_input[i] = true;
    std::vector<sh::ComposedAlias> aliases;
    std::unordered_map<const runtime::Layout*, std::deque<uint32_t>> others;  // results
    for (uint32_t r = 0; r < batch.outputs.size(); ++r) {
      const uint32_t i = replaced[what.live[r]];
      const runtime::Layout* const layout = batch.outputs[r]->layout();
      if (i != kNone && free_input[i] && batch.inputs[i]->layout() == layout) {
        free_input[i] = false;
        aliases.push_back({i, r});
      } else {
        others[layout].push_back(r);
      }
    }
    for (const uint32_t i : given_up) {
      const auto it = free_input[i] ? others.find(batch.inputs[i]->layout()) : others.end();
      if (it == others.end()) continue;
      const auto result = std::ranges::find_if(
          it->second, [&](uint32_t r) { return made_by[what.live[r]] >= last_read[i]; });
      if (result == it->second.end()) continue;
      aliases.push_back({i, *result});
      it->second.erase(result);
    }
    std::ranges::sort(aliases, {}, &sh::ComposedAlias::parameter);
    return aliases;
  }

  static std::string compose(const runtime::Batch& batch, const Replay& what,
                             std::span<const sh::ComposedAlias> aliases) {
    std::deque<sh::FunctionText> texts;
    std::vector<const sh::FunctionText*> functions;
    std::unordered_map<uint64_t, uint32_t> known;  // by the program's id
    std::vector<std::pair<uint32_t, uint32_t>> value_places;
    for (size_t c = 0; c < what.calls.size(); ++c) {
      const Program& program = *what.calls[c].program;
      for (size_t r = 0; r < program.outputs.size(); ++r) {
        value_places.emplace_back(static_cast<uint32_t>(c), static_cast<uint32_t>(r));
      }
    }
    const auto value_of = [&](uint32_t code) {
      if (!is_value(code)) return sh::ComposedValue{sh::ComposedValue::kParameter, code >> 1};
      const auto& [call, result] = value_places[code >> 1];
      return sh::ComposedValue{call, result};
    };
    std::vector<sh::ComposedValue> operands;
    operands.reserve(what.operands.size());
    for (const uint32_t code : what.operands) operands.push_back(value_of(code));
    std::vector<sh::ComposedCall> calls;
    for (const Call& call : what.calls) {
      const auto [it, is_new] =
          known.emplace(call.program->id, static_cast<uint32_t>(functions.size()));
      if (is_new) {
        texts.emplace_back(call.program->executable->text());
        functions.push_back(&texts.back());
      }
      calls.push_back(
          {it->second, {operands.data() + call.first_operand, call.program->parameters.size()}});
    }
    std::vector<std::string> parameters;
    for (const runtime::DeviceBufferPtr& input : batch.inputs) {
      parameters.push_back(sh::to_string(input->layout()->type));
    }
    std::vector<sh::ComposedValue> results;
    for (const uint32_t v : what.live) results.push_back(value_of(value_code(v)));
    return sh::compose(functions, parameters, calls, results, aliases);
  }

  static GraphForm form_of(const Replay& what, const runtime::Batch& batch) {
    GraphForm form;
    uint32_t values = 0;
    for (const Call& call : what.calls) {
      const Program& program = *call.program;
      form.calls.push_back({program.id, &program.executable->what(), call.first_operand, values});
      values += static_cast<uint32_t>(program.outputs.size());
    }
    form.operands = what.operands;
    form.live = what.live;
    for (const int64_t input : batch.donated) form.donated.push_back(static_cast<uint32_t>(input));
    return form;
  }

  static std::string describe(const Replay& what) {
    return "a fused program of " + std::to_string(what.calls.size()) + " operators (" +
           names_of(what.calls) + ")";
  }

  const int device_;
  std::mutex mutex_;
  std::mutex submitting_;  // taken while mutex_ is held
  uint64_t number_ = 0;
  std::shared_ptr<OpenBatch> batch_;
  std::deque<Call> calls_;
  std::vector<uint32_t> operands_;
  std::vector<runtime::DeviceBufferPtr> inputs_, values_;
  Structure structure_;
  uint64_t hash_ = 0;
  std::optional<CutReason> cut_;  // due before the next call
  std::atomic<size_t> recorded_{0};
  runtime::RepetitionDetector repetition_;
  FusedTable fused_;
};

// Made on first use, never destroyed: values may ask for their graph when the process ends.
std::array<std::atomic<Graph*>, runtime::kMaxDevices>& graphs() {
  static std::array<std::atomic<Graph*>, runtime::kMaxDevices> all{};
  return all;
}

Graph& graph_of(int device) {
  std::atomic<Graph*>& slot = graphs().at(static_cast<size_t>(device));
  if (Graph* graph = slot.load(std::memory_order_acquire)) return *graph;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (Graph* graph = slot.load(std::memory_order_acquire)) return *graph;
  Graph* graph = std::make_unique<Graph>(device).release();
  slot.store(graph, std::memory_order_release);
  return *graph;
}

void OpenBatch::begin() const {
  if (!settled_.load(std::memory_order_acquire)) graph_.flush_if_open(this);
}

void OpenBatch::demand() const {
  begin();
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
  }
  return "";
}

void record_call(const ProgramPtr& program, const CallState& state, BufferList& results) {
  graph_of(state.device).record(program, state, results);
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

void flush_graph(int device, CutReason reason) {
  Graph* graph = graphs().at(static_cast<size_t>(device)).load(std::memory_order_acquire);
  if (graph && !graph->is_empty()) graph->flush(reason);
}

void flush_graphs(CutReason reason) {
  for (int device = 0; device < runtime::kMaxDevices; ++device) flush_graph(device, reason);
}

size_t recorded_calls() {
  size_t n = 0;
  for (std::atomic<Graph*>& slot : graphs()) {
    if (const Graph* graph = slot.load(std::memory_order_acquire)) n += graph->size();
  }
  return n;
}

void fail_next_graph(GraphStep step) { step_to_fail().store(step, std::memory_order_relaxed); }

void set_stack_source(std::function<std::string()> source) {
  Graph::stack_source() = std::move(source);
}

}  // namespace torch_tpu::eager
