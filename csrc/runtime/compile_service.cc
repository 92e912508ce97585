#include "runtime/compile_service.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <set>

#include "cache/program_cache.h"
#include "pjrt/error.h"
#include "pjrt/flag_names.h"
#include "runtime/compile_pool.h"
#include "runtime/compile_progress.h"
#include "runtime/host_cpu.h"
#include "runtime/program_dump.h"
#include "runtime/program_history.h"
#include "runtime/program_registry.h"
#include "runtime/refused_program.h"
#include "runtime/runtime.h"
#include "runtime/statistics.h"

namespace torch_tpu::runtime {

namespace {

using Clock = std::chrono::steady_clock;

void add_time(std::atomic<int64_t>& total, Clock::duration spent) {
  total.fetch_add(std::chrono::duration_cast<std::chrono::nanoseconds>(spent).count(),
                  std::memory_order_relaxed);
}

}  // namespace

const std::string& program_scope() {
  static const std::string scope = [] {
    Runtime& runtime = Runtime::get();
    std::string s = "plugin: " + runtime.client().plugin()->identity() +
                    "\nplatform: " + runtime.platform() +
                    "\ndevice kind: " + runtime.device(0).kind +
                    "\ndevices: " + std::to_string(runtime.num_devices()) + "\n";
    if (runtime.is_cpu()) s += "cpu: " + host_cpu_identity() + "\n";
    return s;
  }();
  return scope;
}

namespace {

// What all programs are compiled with, and a program's own options, which count more.
pjrt::CompileOptions compile_options(const pjrt::Options& own) {
  pjrt::CompileOptions options;
  options.env_overrides = own;
  // XLA's CPU compiler otherwise drops NaN in maximum and minimum.
  if (Runtime::get().is_cpu()) {
    options.env_overrides.try_emplace("xla_cpu_enable_fast_min_max", false);
  }
  return options;
}

cache::EntryKey key_of(const std::string& text, const pjrt::Options& own) {
  const std::string options = compile_options(own).serialize();
  const uint64_t size = options.size();
  std::string material(reinterpret_cast<const char*>(&size), sizeof size);
  material += options;
  material += text;
  return {cache::EntryKind::kProgram, program_scope(), std::move(material)};
}

constexpr std::string_view kEmptyProgram =
    "module { func.func @main(%a: tensor<f32>) -> tensor<f32> { return %a : tensor<f32> } }";

cache::ProgramCache& program_cache() { return cache::ProgramCache::get(); }

// Settles one program.
class Job : public std::enable_shared_from_this<Job> {
 public:
  explicit Job(CompiledProgramPtr target)
      : target_(std::move(target)), key_(key_of(target_->text(), target_->options())) {}

  void run() {
    dump_program(target_->text());
    if (!load_or_claim()) compile();
  }

 private:
  // False: no tier has it, and the claim is ours.
  bool load_or_claim() {
    // Again after a hit the plugin refused: it has been dropped.
    for (int attempt = 0; attempt < 2; ++attempt) {
      cache::FindOrClaim found = program_cache().find_or_claim(key_);
      if (!found.hit) {
        claim_ = std::move(found.claim);
        return false;
      }
      if (load(*found.hit)) return true;
    }
    return false;
  }

  bool load(const cache::Hit& hit) noexcept {
    const std::string_view bytes = hit.payload.bytes();
    try {
      const Clock::time_point start = Clock::now();
      std::shared_ptr<pjrt::Executable> executable = Runtime::get().client().deserialize(bytes);
      const Clock::duration spent = Clock::now() - start;
      add_time(statistics().load_ns, spent);
      ProgramHistory::get().add(target_->what(), /*compiled=*/false, spent);
      statistics().loads.fetch_add(1, std::memory_order_relaxed);
      target_->set(std::move(executable), bytes.size(), 0);
      return true;
    } catch (const std::exception& error) {
      program_cache().drop(key_, error.what());
      return false;
    }
  }

  void compile() {
    if (!claim_ || !claim_->reading()) {
      compile_here();
      claim_.reset();  // other processes may go on
      return;
    }
    // A slow tier is still reading: whichever is first. The claim is held until both have ended.
    const auto self = shared_from_this();
    run_in_compile_pool([self] {
      try {
        self->compile_here();
      } catch (...) {
        self->target_->fail(std::current_exception());
      }
    });
    claim_->on_read([self](const cache::Lookup& late) {
      if (late && !self->target_->settled()) self->load(*late.hit);
    });
  }

  void compile_here() {
    if (target_->settled()) return;
    const Clock::time_point start = Clock::now();
    std::shared_ptr<pjrt::Executable> executable;
    try {
      const CompileProgress progress(target_->what(), target_->text());
      executable =
          Runtime::get().client().compile(target_->text(), compile_options(target_->options()));
    } catch (const pjrt::Error& error) {
      const std::optional<std::string> path = keep_refused_program(target_->text());
      throw CompileError(
          target_->what() + ": the compiler refused the program, which " +
          (path ? "was written to " + *path : "could not be written to the temporary directory") +
          "\n" + error.what());
    }
    statistics().compiles.fetch_add(1, std::memory_order_relaxed);
    const Clock::duration spent = Clock::now() - start;
    add_time(statistics().compile_ns, spent);
    ProgramHistory::get().add(target_->what(), /*compiled=*/true, spent);
    target_->set(executable, store(*executable), std::chrono::duration<double>(spent).count());
  }

  // Its size; 0 from a plugin that cannot write it down.
  size_t store(const pjrt::Executable& executable) noexcept {
    try {
      const std::string bytes = executable.serialize();
      program_cache().store(key_, bytes);
      return bytes.size();
    } catch (const std::exception&) {
      return 0;
    }
  }

  const CompiledProgramPtr target_;
  const cache::EntryKey key_;
  std::optional<cache::Claim> claim_;
};

}  // namespace

CompiledProgramPtr prepare(std::string stablehlo_text, std::string what, pjrt::Options options) {
  return ProgramRegistry::get().find_or_add(std::move(stablehlo_text), std::move(what),
                                            std::move(options));
}

CompiledProgramPtr compile(std::string stablehlo_text, std::string what, pjrt::Options options) {
  dump_program(stablehlo_text);
  CompiledProgramPtr program =
      prepare(std::move(stablehlo_text), std::move(what), std::move(options));
  static_cast<void>(program->executable());
  return program;
}

CompiledProgramPtr compile_in_background(std::string stablehlo_text, std::string what,
                                         pjrt::Options options) {
  dump_program(stablehlo_text);  // here its errors are the caller's
  CompiledProgramPtr program =
      prepare(std::move(stablehlo_text), std::move(what), std::move(options));
  program->begin_in_background();
  return program;
}

std::shared_ptr<pjrt::Executable> compile_apart(const std::string& stablehlo_text,
                                                const pjrt::Options& options) {
  const CompileProgress progress("a program compiled ahead of time", stablehlo_text);
  std::shared_ptr<pjrt::Executable> executable =
      Runtime::get().client().compile(stablehlo_text, compile_options(options));
  statistics().compiles.fetch_add(1, std::memory_order_relaxed);
  return executable;
}

namespace {

// The compiler's words when it does not compile with these options; else empty.
std::string refusal_of(const pjrt::Options& options) {
  try {
    Runtime::get().client().compile(kEmptyProgram, compile_options(options));
    return "";
  } catch (const pjrt::Error& error) {
    constexpr std::string_view kOperation = "[compile] ";
    std::string_view message = error.what();
    if (message.starts_with(kOperation)) message.remove_prefix(kOperation.size());
    while (message.ends_with('\n') || message.ends_with('.')) message.remove_suffix(1);
    return std::string(message);
  }
}

std::string refused_option(const std::string& name, const pjrt::Option& value,
                           const std::string& why) {
  Runtime& runtime = Runtime::get();
  const std::string near = pjrt::flag_suggestion(
      runtime.client().plugin()->path(), name,
      [](const std::string& flag, const std::string& set) { return refusal_of({{flag, set}}); });
  return "[compile options] the compiler of " + runtime.platform() + " refuses the option " + name +
         " = " + pjrt::to_string(value) + ": " + why + near +
         (near.empty() ? "; options" : " Options") +
         " are XLA's flags by their names, with values of their types, and those that "
         "torch.tpu.compiler.OPTIONS lists (docs/compile.md)";
}

}  // namespace

void check_options(const pjrt::Options& options) {
  static std::mutex mutex;
  static std::set<std::pair<std::string, pjrt::Option>> accepted;
  // One by one: the compiler's message need not name the option.
  for (const auto& [name, value] : options) {
    {
      const std::lock_guard lock(mutex);
      if (accepted.contains({name, value})) continue;
    }
    const std::string refused = refusal_of({{name, value}});
    if (!refused.empty()) throw CompileError(refused_option(name, value, refused));
    const std::lock_guard lock(mutex);
    accepted.emplace(name, value);
  }
}

void settle(const CompiledProgramPtr& program) noexcept {
  if (program->settled()) return;  // it was loaded from a file
  try {
    std::make_shared<Job>(program)->run();
  } catch (...) {
    program->fail(std::current_exception());
  }
}

void finish_compiling() {
  if (!Runtime::initialized()) return;
  finish_compile_pool();
  cache::ProgramCache::get().shut_down(std::chrono::seconds(10));
}

}  // namespace torch_tpu::runtime
