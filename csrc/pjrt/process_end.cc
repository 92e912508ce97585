#include "pjrt/process_end.h"

#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>

#include "pjrt/error.h"

namespace torch_tpu::pjrt {

namespace internal {
std::atomic<bool> process_is_ending{false};
}

namespace {

// Threads inside a compiler. Whoever enters counts itself and then looks whether the process ends;
// the end does the two the other way round.
std::atomic<int> g_inside{0};

void leave() {
  internal::process_is_ending.store(true);
  while (g_inside.load() != 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

}  // namespace

void leave_compilers_at_exit() {
  static const bool registered = std::atexit(leave) == 0;
  static_cast<void>(registered);
}

CompilerCall::CompilerCall() noexcept {
  g_inside.fetch_add(1);
  entered_ = !internal::process_is_ending.load();
  if (!entered_) g_inside.fetch_sub(1);
}

CompilerCall::~CompilerCall() {
  if (entered_) g_inside.fetch_sub(1);
}

void CompilerCall::require(const char* operation) const {
  if (entered_) return;
  throw Error(PJRT_Error_Code_CANCELLED,
              std::string("[") + operation +
                  "] expected a running process, this one is ending; end the threads that use the "
                  "device before the program ends");
}

}  // namespace torch_tpu::pjrt
