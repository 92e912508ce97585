#include "runtime/compile_service.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>

#include "cache/program_directory.h"
#include "pjrt/error.h"
#include "runtime/program_dump.h"
#include "runtime/runtime.h"
#include "runtime/statistics.h"

namespace torch_tpu::runtime {

namespace {

std::string write_program(const std::string& text) {
  static std::atomic<int> counter{0};
  std::error_code error;
  const std::filesystem::path dir = std::filesystem::temp_directory_path(error);
  const std::filesystem::path path = dir / ("torch_tpu_failed_" + std::to_string(getpid()) + "_" +
                                            std::to_string(counter++) + ".mlir");
  std::ofstream file(path);
  file << text;
  return file ? path.string() : "(the program could not be written to " + path.string() + ")";
}

// The directory of this plugin's programs; null when caching is off.
const cache::ProgramDirectory* directory() {
  static const std::unique_ptr<const cache::ProgramDirectory> d =
      []() -> std::unique_ptr<const cache::ProgramDirectory> {
    const std::optional<std::filesystem::path> root = cache::default_root();
    if (!root) return nullptr;
    const Runtime& runtime = Runtime::get();
    std::string scope = runtime.client().plugin()->identity() + "\n" + runtime.platform();
    if (runtime.is_cpu()) scope += "\n" + cache::host_identity();
    return std::make_unique<const cache::ProgramDirectory>(*root, scope);
  }();
  return d.get();
}

std::shared_ptr<pjrt::Executable> load(const std::string& source) {
  if (!directory()) return nullptr;
  const std::optional<std::string> bytes = directory()->load(source);
  if (!bytes) return nullptr;
  try {
    std::shared_ptr<pjrt::Executable> executable = Runtime::get().client().deserialize(*bytes);
    statistics().loads.fetch_add(1, std::memory_order_relaxed);
    return executable;
  } catch (const pjrt::Error&) {
    return nullptr;  // written by something incompatible after all: compile it again
  }
}

void store(const std::string& source, const pjrt::Executable& executable) {
  if (!directory()) return;
  try {
    directory()->store(source, executable.serialize());
  } catch (const pjrt::Error&) {
    // A plugin without serialization: nothing to keep.
  }
}

}  // namespace

std::shared_ptr<pjrt::Executable> compile(const std::string& stablehlo_text,
                                          const std::string& what) {
  const auto start = std::chrono::steady_clock::now();
  Runtime& runtime = Runtime::get();  // what fails here is not the compiler's fault
  dump_program(stablehlo_text);
  try {
    pjrt::CompileOptions options;
    // XLA's CPU compiler otherwise drops NaN in maximum and minimum.
    if (runtime.is_cpu()) options.env_overrides["xla_cpu_enable_fast_min_max"] = false;
    const std::string source = options.serialize() + stablehlo_text;
    if (std::shared_ptr<pjrt::Executable> loaded = load(source)) return loaded;
    std::shared_ptr<pjrt::Executable> executable =
        runtime.client().compile(stablehlo_text, options);
    store(source, *executable);
    const auto spent = std::chrono::steady_clock::now() - start;
    Statistics& s = statistics();
    s.compiles.fetch_add(1, std::memory_order_relaxed);
    s.compile_ns.fetch_add(std::chrono::duration_cast<std::chrono::nanoseconds>(spent).count(),
                           std::memory_order_relaxed);
    return executable;
  } catch (const pjrt::Error& error) {
    throw CompileError(what + ": the compiler refused the program, which was written to " +
                       write_program(stablehlo_text) + "\n" + error.what());
  }
}

}  // namespace torch_tpu::runtime
