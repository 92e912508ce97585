// A program on its way from text to executable.
#pragma once

#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <string>

#include "pjrt/executable.h"
#include "pjrt/option.h"

namespace torch_tpu::runtime {

// Shared by every call that has the program. Thread-safe. Made by the compile service.
class CompiledProgram : public std::enable_shared_from_this<CompiledProgram> {
 public:
  // `what` names the operation and its signature, for messages. `options` are compiler options of
  // this program's own.
  CompiledProgram(std::string text, std::string what, pjrt::Options options = {})
      : text_(std::move(text)), what_(std::move(what)), options_(std::move(options)) {}
  // One that never was: whoever asks for its executable gets the error.
  static std::shared_ptr<CompiledProgram> failed(std::string what, std::exception_ptr error);
  CompiledProgram(const CompiledProgram&) = delete;
  CompiledProgram& operator=(const CompiledProgram&) = delete;

  const std::string& text() const noexcept { return text_; }  // StableHLO
  const std::string& what() const noexcept { return what_; }
  const pjrt::Options& options() const noexcept { return options_; }
  // Whether its text may become a part of another program. What was loaded from a file has none,
  // and options hold for this program alone.
  bool composable() const noexcept { return !text_.empty() && options_.empty(); }

  // Loads or compiles the program on this thread, or waits for whoever does. Throws CompileError.
  const pjrt::Executable& executable() {
    if (const pjrt::Executable* e = ready_.load(std::memory_order_acquire)) [[likely]] {
      return *e;
    }
    return wait();
  }
  // Has the compile pool do it, unless somebody has begun.
  void begin_in_background();

  bool ready() const noexcept { return ready_.load(std::memory_order_acquire) != nullptr; }
  // It has ended, with an executable or an error.
  bool settled() const;
  // Of the serialized executable: a measure of the memory it takes. 0 where that is not known.
  size_t bytes() const noexcept { return bytes_.load(std::memory_order_relaxed); }

  // What the compiler took; 0 when it was not asked.
  double compile_seconds() const noexcept { return seconds_.load(std::memory_order_relaxed); }
  bool from_cache() const noexcept { return ready() && compile_seconds() == 0; }

  // For the compile service; the first of set() and fail() counts.
  void set(std::shared_ptr<pjrt::Executable> executable, size_t bytes, double compile_seconds);
  void fail(std::exception_ptr error);

 private:
  const pjrt::Executable& wait();

  const std::string text_, what_;
  const pjrt::Options options_;
  std::atomic<bool> begun_{false};
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<pjrt::Executable> executable_;
  std::exception_ptr error_;
  std::atomic<const pjrt::Executable*> ready_{nullptr};
  std::atomic<size_t> bytes_{0};
  std::atomic<double> seconds_{0};
};

using CompiledProgramPtr = std::shared_ptr<CompiledProgram>;

}  // namespace torch_tpu::runtime
