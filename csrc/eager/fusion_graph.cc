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
#include "eager/list_pieces.h"
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
// With several parts (see below), each of which has its own program, all of them.
constexpr size_t kMaxCallsOfParts = 8 * kMaxCalls;
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
      return name + (what.calls.size() > 1 ? " failed in a fused program: " : " failed: ") +
             e.what() +
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
  std::shared_ptr<Replay> what = std::make_shared<Replay>();
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
  explicit Graph(int device) : device_(device) { open(next_parts()); }

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
    const ListPiece piece = current_list_piece();
    std::unique_lock lock(mutex_);
    // Here and not when it came up: the call before has let go of its operands by now.
    if (cut_) {
      const CutReason reason = *cut_;
      close(lock, reason);
      lock.lock();
    }
    const uint32_t number_of_part = part_for(*program, state, piece);
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
      value->place() = {number_, value_code(part.values.size()), number_of_part};
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

  void flush_if_open(const OpenBatch* batch) {
    std::unique_lock lock(mutex_);
    if (batch->number() != number_) {
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
    return place.graph == number_ && is_value(place.code);
  }

  uint32_t part_for(const Program& program, const CallState& state, const ListPiece& piece) {
    if (piece.number == 0 && parts_.size() == 1) [[likely]] {
      return 0;
    }
    uint32_t phase = 0;
    for (const Program::Parameter& p : program.parameters) {
      if (p.kind != Program::Parameter::Kind::kStorage) continue;
      const runtime::GraphPlace& place = state.contents[p.index].buffer->place();
      if (!is_own_value(place)) continue;
      const Part& maker = *parts_[place.part];
      phase = std::max(phase, maker.phase + (maker.piece == piece.number ? 0 : 1));
    }
    if (phase == 0 && piece.number == 0) return 0;
    const auto [it, is_new] = part_numbers_.try_emplace(uint64_t{phase} << 32 | piece.number,
                                                        static_cast<uint32_t>(parts_.size()));
    if (is_new) {
      auto part = std::make_unique<Part>(std::make_shared<OpenBatch>(*this, number_));
      part->phase = phase;
      part->piece = piece.number;
      parts_.push_back(std::move(part));
    }
    return it->second;
  }

  uint32_t operand(Part& part, uint32_t number_of_part, const runtime::DeviceBufferPtr& buffer) {
    runtime::GraphPlace& place = buffer->place();
    if (place.graph == number_ && place.part == number_of_part) return place.code;
    if (parts_.size() == 1) [[likely]] {
      place = {number_, part.add_input(buffer), number_of_part};
      return place.code;
    }
    const auto [it, is_new] = part.shared.try_emplace(buffer.get());
    if (is_new) it->second = part.add_input(buffer);
    if (!is_own_value(place)) place = {number_, it->second, number_of_part};
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
    Replay& what = *part.what;
    OpenBatch& batch = *part.batch;
    what.calls = std::move(part.calls);
    what.operands = std::move(part.operands);
    batch.inputs = std::move(part.inputs);
    batch.device = device_;
    batch.stream = current_stream(device_);
    batch.set_operators(what.calls.size());
    const bool wanted = std::ranges::any_of(
        part.values, [](const runtime::DeviceBufferPtr& value) { return value.use_count() > 1; });
    if (!wanted) {
      batch.inputs.clear();  // earlier parts need not compute them
      return;
    }
    if (what.calls.size() == 1) {
      fill_single(part);
    } else {
      fill_fused(part, earlier);
    }
    if (fused_.size() > max_graphs()) evict(fused_);
    batch.is_awaited = wants_stacks();
    batch.recover = [what = part.what](runtime::Batch& b, const std::exception_ptr& error) {
      replay(*what, b, error);
    };
  }

  // One operator: the program that strict mode has for it, with all of its results.
  void fill_single(Part& part) {
    Replay& what = *part.what;
    OpenBatch& batch = *part.batch;
    const Program& program = *what.calls[0].program;
    part.structure.push_back(part.hash);
    Fused& fused = fused_[part.structure];
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
    Replay& what = *part.what;
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
    const auto it = fused_.try_emplace(part.structure).first;
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
      fused_.erase(it);
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
  Parts parts_;  // the first one is that of phase 0 and no piece
  std::unordered_map<uint64_t, uint32_t> part_numbers_;  // the others, by phase and piece
  std::optional<CutReason> cut_;                         // due before the next call
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
