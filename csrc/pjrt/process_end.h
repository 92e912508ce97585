#pragma once

#include <atomic>

namespace torch_tpu::pjrt {

// A plugin's compiler has static objects of its own: XLA's CPU compiler makes some, with a mutex
// inside, when it compiles first. exit() destroys those before whatever was registered earlier, and
// a thread that is still compiling, or drops a program, would then lock a mutex that is gone, which
// aborts the process. So what the compiler made is left to the system once the process ends, and
// nothing is compiled any more.

// Has exit() begin with waiting for the calls that are inside a compiler, and refuse later ones.
// Call it as late as possible, all threads running: what was registered last runs first.
// Idempotent.
void leave_compilers_at_exit();

namespace internal {
extern std::atomic<bool> process_is_ending;  // owner: process_end.cc
}

// Whether exit() has begun: what a plugin made need not be destroyed any more.
inline bool process_is_ending() noexcept {
  return internal::process_is_ending.load(std::memory_order_relaxed);
}

// One call into a compiler: compiling, loading, writing down or dropping a program.
class CompilerCall {
 public:
  CompilerCall() noexcept;
  ~CompilerCall();
  CompilerCall(const CompilerCall&) = delete;
  CompilerCall& operator=(const CompilerCall&) = delete;

  // False: the process is ending, and the call must not be made.
  explicit operator bool() const noexcept { return entered_; }
  // Throws an Error instead. Not waiting for the end: static objects of the program may in their
  // destructors wait for this thread, as PyTorch's autograd engine does.
  void require(const char* operation) const;

 private:
  bool entered_;
};

}  // namespace torch_tpu::pjrt
