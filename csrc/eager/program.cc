#include "eager/program.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <mutex>
#include <sstream>
#include <unordered_map>

#include "cache/program_cache.h"
#include "eager/device_context.h"
#include "eager/dry_run.h"
#include "eager/fusion_graph.h"
#include "eager/generator.h"
#include "eager/mode.h"
#include "environment/environment.h"
#include "pjrt/error.h"
#include "runtime/batch.h"
#include "runtime/block_pool.h"
#include "runtime/hash.h"
#include "runtime/runtime.h"
#include "runtime/statistics.h"

namespace torch_tpu::eager {

namespace {

using Key = std::vector<uint64_t>;
using KeyView = std::span<const uint64_t>;

struct KeyHash {
  using is_transparent = void;
  size_t operator()(KeyView key) const {
    uint64_t h = 0x9e3779b97f4a7c15ull ^ key.size();
    for (const uint64_t word : key) h = runtime::mix(h, word);
    return h;
  }
  size_t operator()(const Key& key) const { return (*this)(KeyView(key)); }
};

struct KeyEqual {
  using is_transparent = void;
  bool operator()(KeyView a, KeyView b) const {
    return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin());
  }
};

using Table = std::unordered_map<Key, ProgramPtr, KeyHash, KeyEqual>;

struct GlobalTable {
  std::mutex mutex;
  Table programs;
  std::atomic<uint64_t> epoch{0};
  std::atomic<uint64_t> stored{0};  // the clock of Program::last_used
};

GlobalTable& global() {
  // Never destroyed: executables must not outlive the plugin's own static objects.
  static GlobalTable& table = *std::make_unique<GlobalTable>().release();
  return table;
}

struct LocalTable {
  Table programs;
  uint64_t epoch = 0;
};

LocalTable& local() {
  thread_local LocalTable table;
  return table;
}

struct NumberHash {
  size_t operator()(const NumberOperand& n) const {
    uint64_t h = n.bits[0] * 0xff51afd7ed558ccdull ^ n.bits[1] ^ static_cast<uint64_t>(n.type);
    return h ^ h >> 29;
  }
};

size_t max_programs_from_environment() {
  constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
  return static_cast<size_t>(environment::integer("TORCH_TPU_MAX_PROGRAMS", 4096, 16, kNoLimit));
}

void mark_used(const Program& program, uint64_t time) {
  std::atomic_ref(program.last_used).store(time, std::memory_order_relaxed);
}

// Drops the least recently used quarter. The caller holds the table's lock.
void evict(GlobalTable& table) {
  std::vector<std::pair<uint64_t, const Key*>> by_age;
  by_age.reserve(table.programs.size());
  for (const auto& [key, program] : table.programs) {
    by_age.emplace_back(std::atomic_ref(program->last_used).load(std::memory_order_relaxed), &key);
  }
  const auto quarter = by_age.begin() + static_cast<std::ptrdiff_t>(by_age.size() / 4);
  std::nth_element(by_age.begin(), quarter, by_age.end());
  for (auto it = by_age.begin(); it != quarter; ++it) {
    table.programs.erase(table.programs.find(*it->second));
  }
  table.epoch.fetch_add(1, std::memory_order_release);  // the threads' own copies go as well
}

// The bytes are added up after so many new programs: many are still compiled when they are stored.
constexpr size_t kCountEvery = 16;

size_t total_bytes(const GlobalTable& table) {
  size_t bytes = 0;
  for (const auto& [key, program] : table.programs) {
    if (program->executable) bytes += program->executable->bytes();
  }
  return bytes;
}

// How many numbers a thread keeps on the device.
constexpr size_t kMaxNumbers = 4096;

}  // namespace

ProgramPtr find_program(KeyView key) {
  LocalTable& mine = local();
  const uint64_t epoch = global().epoch.load(std::memory_order_acquire);
  if (mine.epoch != epoch) {
    mine.programs.clear();
    mine.epoch = epoch;
  }
  GlobalTable& table = global();
  if (const auto it = mine.programs.find(key); it != mine.programs.end()) {
    mark_used(*it->second, table.stored.load(std::memory_order_relaxed));
    return it->second;
  }
  const std::lock_guard lock(table.mutex);
  const auto it = table.programs.find(key);
  if (it == table.programs.end()) return nullptr;
  mine.programs.emplace(it->first, it->second);
  return it->second;
}

void store_program(KeyView key, const ProgramPtr& program) {
  GlobalTable& table = global();
  const std::lock_guard lock(table.mutex);
  mark_used(*program, table.stored.fetch_add(1) + 1);
  table.programs[Key(key.begin(), key.end())] = program;
  const size_t limit = cache::ProgramCache::get().settings().memory_bytes;
  if (table.programs.size() > max_programs() ||
      (limit != 0 && table.programs.size() % kCountEvery == 0 && total_bytes(table) > limit)) {
    evict(table);
  }
}

uint64_t next_program_id() {
  static std::atomic<uint64_t> ids{0};
  return ids.fetch_add(1, std::memory_order_relaxed) + 1;
}

size_t max_programs() {
  static const size_t n = max_programs_from_environment();
  return n;
}

void clear_programs() {
  GlobalTable& table = global();
  const std::lock_guard lock(table.mutex);
  table.programs.clear();
  table.epoch.fetch_add(1, std::memory_order_release);
}

void forget_failed_programs() {
  GlobalTable& table = global();
  const std::lock_guard lock(table.mutex);
  std::erase_if(table.programs, [](const Table::value_type& entry) {
    const runtime::CompiledProgramPtr& executable = entry.second->executable;
    return executable && executable->settled() && !executable->ready();
  });
  table.epoch.fetch_add(1, std::memory_order_release);
}

size_t program_count() {
  GlobalTable& table = global();
  const std::lock_guard lock(table.mutex);
  return table.programs.size();
}

runtime::DeviceBufferPtr number_buffer(const NumberOperand& number, int device) {
  thread_local std::vector<std::unordered_map<NumberOperand, runtime::DeviceBufferPtr, NumberHash>>
      caches;
  if (caches.size() <= static_cast<size_t>(device)) caches.resize(static_cast<size_t>(device) + 1);
  auto& cache = caches[static_cast<size_t>(device)];
  if (const auto it = cache.find(number); it != cache.end()) return it->second;
  if (cache.size() >= kMaxNumbers) cache.clear();
  const runtime::Layout* layout = runtime::intern_layout({number.type, {}});
  runtime::DeviceBufferPtr buffer =
      runtime::Runtime::get().to_device(number.bits.data(), layout, device);
  buffer->given_away();  // memory_allocated() counts what tensors hold, and that alone
  cache.emplace(number, buffer);
  return buffer;
}

runtime::DeviceBufferPtr random_buffer(const Program& program, const CallState& state) {
  const auto [seed, offset] = reserve_random(state.generator, state.device, program.random_count);
  const std::array<uint64_t, 2> words{seed, offset};
  static const runtime::Layout* const layout =
      runtime::intern_layout({stablehlo::ElementType::kU64, {2}});
  return runtime::Runtime::get().to_device(words.data(), layout, state.device);
}

std::string live_memory(int device) {
  const runtime::MemoryCounters& counters = runtime::memory_counters(device);
  std::ostringstream out;
  out << "live: " << counters.bytes.load() << " bytes in " << counters.count.load() << " arrays";
  if (counters.count.load() > 0) out << ", most of it in " << runtime::describe_live_arrays();
  return out.str();
}

void check_memory(int device, size_t nbytes, const char* what) {
  if (!runtime::would_exceed_limit(device, static_cast<int64_t>(nbytes))) [[likely]] {
    return;
  }
  // What is queued may be about to free some.
  runtime::drain_queue(device);
  if (!runtime::would_exceed_limit(device, static_cast<int64_t>(nbytes))) return;
  runtime::MemoryCounters& counters = runtime::memory_counters(device);
  counters.out_of_memory.fetch_add(1);
  std::ostringstream message;
  message << "tpu:" << device << " out of memory: no room for " << nbytes << " bytes of " << what
          << "; limit " << runtime::memory_limit(device)
          << " bytes (TORCH_TPU_MEMORY_LIMIT or set_per_process_memory_fraction); "
          << live_memory(device) << ". Free tensors, use a smaller batch or raise the limit.";
  TORCH_CHECK_WITH(OutOfMemoryError, false, message.str());
}

namespace {

// The storages whose buffers a program is about to take over.
class Loans {
 public:
  Loans() = default;
  Loans(const Loans&) = delete;
  Loans& operator=(const Loans&) = delete;
  ~Loans() {
    for (const Loan& loan : loans_) loan.storage->take_back();
  }
  bool lend(DeviceStorage& storage, const runtime::DeviceBufferPtr& held) {
    if (!storage.lend(held)) return false;
    loans_.push_back({&storage, held.get()});
    return true;
  }
  void reserve(size_t n) { loans_.reserve(n); }
  // The program runs: the storages wait for set().
  void taken() {
    for (const Loan& loan : loans_) loan.buffer->given_away();
    loans_.clear();
  }

 private:
  struct Loan {
    DeviceStorage* storage;
    const runtime::DeviceBuffer* buffer;
  };
  c10::SmallVector<Loan, 4> loans_;
};

// Runs the executable and binds its results to the storages that are written.
void execute(const Program& program, const CallState& state, BufferList& results) {
  const int device = state.device;
  runtime::Runtime& rt = runtime::Runtime::get();
  const pjrt::Executable& executable = program.executable->executable();
  c10::SmallVector<PJRT_Buffer*, 16> args;
  args.reserve(program.parameters.size());
  c10::SmallVector<runtime::DeviceBufferPtr, 4> keep;
  c10::SmallVector<int64_t, 8> not_donatable;
  size_t new_bytes = program.output_bytes;
  for (const Program::Parameter& p : program.parameters) {
    switch (p.kind) {
      case Program::Parameter::Kind::kStorage: {
        const Contents& contents = state.contents[p.index];
        PJRT_Buffer* const handle = contents.buffer->handle();
        if (handle == nullptr) [[unlikely]] {
          runtime::DeviceBuffer::refuse_hollow();
        }
        args.push_back(handle);
        break;
      }
      case Program::Parameter::Kind::kNumber:
        keep.push_back(number_buffer(state.numbers[p.index], device));
        args.push_back(keep.back()->handle());
        break;
      case Program::Parameter::Kind::kRandom:
        keep.push_back(random_buffer(program, state));
        args.push_back(keep.back()->handle());
        break;
    }
  }
  // Last of all: other threads wait for what is lent.
  Loans loans;
  for (size_t i = 0; i < program.parameters.size(); ++i) {
    const Program::Parameter& p = program.parameters[i];
    if (!p.donated) continue;
    const Contents& contents = state.contents[p.index];
    if (loans.lend(*state.storages[p.index], contents.buffer)) {
      new_bytes -= contents.layout->nbytes;
    } else {
      not_donatable.push_back(static_cast<int64_t>(i));
    }
  }
  check_memory(device, new_bytes, "a program's results");
  c10::SmallVector<PJRT_Buffer*, 8> outputs(program.outputs.size(), nullptr);
  executable.execute(args.data(), args.size(), outputs.data(), not_donatable,
                     rt.device(device).handle);
  runtime::statistics().programs.fetch_add(1, std::memory_order_relaxed);
  loans.taken();
  runtime::memory_counters(device).add(static_cast<int64_t>(program.output_bytes),
                                       static_cast<int64_t>(outputs.size()));
  results.reserve(outputs.size());
  const runtime::PoolAllocator<runtime::DeviceBuffer> memory;
  for (size_t i = 0; i < outputs.size(); ++i) {
    results.push_back(std::allocate_shared<const runtime::DeviceBuffer>(
        memory, pjrt::Buffer::adopt(rt.client().api(), outputs[i]), program.outputs[i].layout,
        device, runtime::DeviceBuffer::Counted()));
    results.back()->maker() = program.id;
  }
  for (size_t i = 0; i < results.size(); ++i) {
    const int slot = program.outputs[i].slot;
    if (slot >= 0) state.storages[static_cast<size_t>(slot)]->set(results[i]);
  }
  if (!results.empty()) runtime::record_work(device, current_stream(device), results[0]);
}

}  // namespace

void launch(const ProgramPtr& shared, const CallState& state, BufferList& results) {
  const Program& program = *shared;
  const EagerMode mode = current_mode();
  if (DryRun* const run = DryRun::current()) [[unlikely]] {
    run->run(program, state, results);
  } else if (mode == EagerMode::kDeferAndFuse) {
    if (program.executable->composable()) [[likely]] {
      record_call(shared, state, results);
    } else {
      flush_graph_of(state, CutReason::kAlone);
      enqueue_call(shared, state, results);
    }
  } else if ((program.executable->ready() && runtime::queue_is_empty(state.device)) ||
             mode == EagerMode::kDeferNeverAndLaunchBlocking) [[likely]] {
    execute(program, state, results);
  } else {
    enqueue_call(shared, state, results);
  }
}

void run_program(const ProgramPtr& shared, CallState& state, size_t num_arguments,
                 torch::jit::Stack& stack) {
  const Program& program = *shared;
  const int device = state.device;
  BufferList results;
  if (program.executable) launch(shared, state, results);

  const auto new_tensor = [&](const Program::NewTensor& t) {
    if (t.output < 0) return at::Tensor();
    return make_tensor(std::move(results[static_cast<size_t>(t.output)]), t.dtype, t.sizes,
                       t.strides, 0, t.nbytes, device);
  };
  // The common case first: one new tensor.
  if (program.returns.size() == 1 && program.returns[0].kind == CallReturn::Kind::kTensor)
      [[likely]] {
    at::Tensor result = new_tensor(program.tensors[program.returns[0].index]);
    torch::jit::drop(stack, num_arguments);
    stack.emplace_back(std::move(result));
    return;
  }
  push_returns(
      program.returns, [&](size_t i) { return new_tensor(program.tensors[i]); }, num_arguments,
      stack);
}

}  // namespace torch_tpu::eager
