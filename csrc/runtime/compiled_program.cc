#include "runtime/compiled_program.h"

#include "cache/host_hooks.h"
#include "runtime/compile_pool.h"
#include "runtime/compile_service.h"

namespace torch_tpu::runtime {

CompiledProgramPtr CompiledProgram::failed(std::string what, std::exception_ptr error) {
  auto program = std::make_shared<CompiledProgram>(std::string(), std::move(what));
  program->begun_.store(true);
  program->fail(std::move(error));
  return program;
}

void CompiledProgram::begin_in_background() {
  if (begun_.exchange(true)) return;
  run_in_compile_pool([self = shared_from_this()] { settle(self); });
}

bool CompiledProgram::settled() const {
  const std::lock_guard lock(mutex_);
  return executable_ || error_;
}

void CompiledProgram::set(std::shared_ptr<pjrt::Executable> executable, size_t bytes,
                          double compile_seconds) {
  {
    const std::lock_guard lock(mutex_);
    if (executable_ || error_) return;
    executable_ = std::move(executable);
    bytes_.store(bytes, std::memory_order_relaxed);
    seconds_.store(compile_seconds, std::memory_order_relaxed);
    ready_.store(executable_.get(), std::memory_order_release);
  }
  changed_.notify_all();
}

void CompiledProgram::fail(std::exception_ptr error) {
  {
    const std::lock_guard lock(mutex_);
    if (executable_ || error_) return;
    error_ = std::move(error);
  }
  changed_.notify_all();
}

const pjrt::Executable& CompiledProgram::wait() {
  if (!begun_.exchange(true)) settle(shared_from_this());
  if (!settled()) {
    cache::blocking([this] {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return executable_ || error_; });
    });
  }
  const std::lock_guard lock(mutex_);
  if (error_) std::rethrow_exception(error_);
  return *executable_;
}

}  // namespace torch_tpu::runtime
