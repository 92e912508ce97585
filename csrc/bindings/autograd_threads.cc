#include "bindings/autograd_threads.h"

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

namespace torch_tpu::bindings {

namespace {

namespace fs = std::filesystem;

std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// PyTorch names its threads; the kernel says after the name in parentheses what each is doing.
bool all_asleep() {
  std::error_code error;
  for (const fs::directory_entry& task : fs::directory_iterator("/proc/self/task", error)) {
    if (!first_line(task.path() / "comm").starts_with("pt_autograd")) continue;
    const std::string stat = first_line(task.path() / "stat");
    const size_t name_end = stat.rfind(')');
    if (name_end != std::string::npos && stat.compare(name_end, 3, ") S") != 0) return false;
  }
  return true;
}

}  // namespace

void wait_for_autograd_threads() {
  using std::chrono::milliseconds;
  // One that only waits for the GIL sleeps too, but not twice in a row: nobody else has it.
  constexpr int kInARow = 3;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  for (int asleep = 0; asleep < kInARow && std::chrono::steady_clock::now() < deadline;) {
    asleep = all_asleep() ? asleep + 1 : 0;
    std::this_thread::sleep_for(milliseconds(4));
  }
}

}  // namespace torch_tpu::bindings
