#include "runtime/compile_service.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>

#include "pjrt/error.h"
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

}  // namespace

std::shared_ptr<pjrt::Executable> compile(const std::string& stablehlo_text,
                                          const std::string& what) {
  const auto start = std::chrono::steady_clock::now();
  try {
    pjrt::CompileOptions options;
    // XLA's CPU compiler otherwise drops NaN in maximum and minimum.
    if (Runtime::get().is_cpu()) options.env_overrides["xla_cpu_enable_fast_min_max"] = false;
    std::shared_ptr<pjrt::Executable> executable =
        Runtime::get().client().compile(stablehlo_text, options);
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
