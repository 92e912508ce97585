// A line on the terminal for compiles that take long.
#pragma once

#include <chrono>
#include <list>
#include <string_view>

namespace torch_tpu::runtime {

// Exists while a program is compiled. Where standard error is a terminal, a compile that has taken
// TORCH_TPU_COMPILE_PROGRESS seconds (5 unless set; "off" for never) is shown there, with its time
// so far, until it ends.
class CompileProgress {
 public:
  // `what` and `text` (the program) must outlive this.
  CompileProgress(std::string_view what, std::string_view text);
  ~CompileProgress();
  CompileProgress(const CompileProgress&) = delete;
  CompileProgress& operator=(const CompileProgress&) = delete;

  struct Running {
    std::string_view what;
    std::string_view text;
    std::chrono::steady_clock::time_point start;
  };

 private:
  std::list<Running>::iterator place_;
  bool shown_ = false;
};

}  // namespace torch_tpu::runtime
