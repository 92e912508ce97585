// What is to be there for real although a dry run needs it.
#pragma once

namespace torch_tpu::eager {

class DryRun;

// From begin() to end(), on one thread, that thread's dry run computes.
class DryRunPause {
 public:
  DryRunPause() = default;
  ~DryRunPause() { end(); }
  DryRunPause(const DryRunPause&) = delete;
  DryRunPause& operator=(const DryRunPause&) = delete;
  void begin();
  void end();

 private:
  DryRun* paused_ = nullptr;
};

}  // namespace torch_tpu::eager
