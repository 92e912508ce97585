#include "runtime/program_dump.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <stdexcept>
#include <system_error>

#include "cache/digest.h"

namespace torch_tpu::runtime {

namespace {

namespace fs = std::filesystem;

constexpr const char* kVariable = "TORCH_TPU_DUMP_STABLEHLO";

// Read once: a program is compiled rarely, but environment variables may change under a thread.
const std::optional<fs::path>& folder() {
  static const std::optional<fs::path> f = []() -> std::optional<fs::path> {
    const char* const value = std::getenv(kVariable);
    if (value == nullptr || *value == '\0') return std::nullopt;
    return fs::path(value);
  }();
  return f;
}

[[noreturn]] void fail(const fs::path& path, const std::string& why) {
  throw std::runtime_error(std::string("[dump program] expected ") + kVariable +
                           " to name a folder that can be written to, but " + path.string() + ": " +
                           why + "; correct it, or unset it");
}

}  // namespace

void dump_program(const std::string& stablehlo_text) {
  if (!folder()) return;
  std::error_code error;
  fs::create_directories(*folder(), error);
  if (error) fail(*folder(), error.message());
  const fs::path target = *folder() / (cache::sha256({stablehlo_text}).hex() + ".mlir");
  if (fs::exists(target, error)) return;

  // A reader must not see half a program.
  static std::atomic<int> counter{0};
  fs::path temporary = target;
  temporary += "." + std::to_string(getpid()) + "_" + std::to_string(counter++) + ".tmp";
  std::ofstream file(temporary, std::ios::binary);
  file << stablehlo_text;
  file.close();
  if (!file) {
    fs::remove(temporary, error);
    fail(temporary, "cannot be written");
  }
  fs::rename(temporary, target, error);
  if (error) fail(target, error.message());
}

}  // namespace torch_tpu::runtime
