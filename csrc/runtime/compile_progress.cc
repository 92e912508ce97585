#include "runtime/compile_progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "environment/environment.h"

namespace torch_tpu::runtime {

namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

// nullopt: never.
std::optional<Seconds> patience_from_environment() {
  constexpr const char* kVariable = "TORCH_TPU_COMPILE_PROGRESS";
  const std::string text = environment::text(kVariable);
  if (text.empty()) return Seconds(5);
  if (text == "off") return std::nullopt;
  char* end = nullptr;
  const double seconds = std::strtod(text.c_str(), &end);
  if (*end != '\0' || !(seconds >= 0)) {
    environment::refuse(kVariable, "a number of seconds or 'off'", text);
  }
  return Seconds(seconds);
}

size_t count_operations(std::string_view text) {
  size_t n = 0;
  for (size_t at = 0; (at = text.find("stablehlo.", at)) != std::string_view::npos; ++at) ++n;
  return n;
}

// The thread that writes the line, and what it writes about.
class Reporter {
 public:
  static Reporter& get() {
    // Never destroyed: its thread may still run when the process ends.
    static Reporter& reporter = *std::make_unique<Reporter>().release();
    return reporter;
  }

  bool wanted() const { return patience_.has_value() && isatty(STDERR_FILENO) == 1; }

  std::list<CompileProgress::Running>::iterator add(CompileProgress::Running running) {
    const std::lock_guard lock(mutex_);
    if (thread_owner_ != getpid()) {  // none yet, or it stayed behind in a fork
      thread_owner_ = getpid();
      std::thread([this] { run(); }).detach();
    }
    running_.push_back(running);
    changed_.notify_one();
    return std::prev(running_.end());
  }

  void remove(std::list<CompileProgress::Running>::iterator place) {
    const std::lock_guard lock(mutex_);
    running_.erase(place);
    if (running_.empty()) wipe();
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return !running_.empty(); });
      const Clock::time_point due =
          running_.front().start + std::chrono::duration_cast<Clock::duration>(*patience_);
      if (Clock::now() < due) {
        changed_.wait_until(lock, due);
        continue;
      }
      write();
      changed_.wait_for(lock, std::chrono::milliseconds(500));
    }
  }

  void write() {
    const CompileProgress::Running& oldest = running_.front();
    std::string line =
        "torch_tpu: compiling " + std::string(oldest.what) + ", " +
        std::to_string(count_operations(oldest.text)) + " operations, " +
        std::to_string(static_cast<int>(Seconds(Clock::now() - oldest.start).count())) + " s";
    if (running_.size() > 1) line += " (and " + std::to_string(running_.size() - 1) + " more)";
    winsize size{};
    const size_t width =
        ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col - 1u : 79u;
    if (line.size() > width) line.resize(width);
    std::fprintf(stderr, "\r\033[K%s", line.c_str());
    std::fflush(stderr);
    written_ = true;
  }

  void wipe() {
    if (!written_) return;
    std::fputs("\r\033[K", stderr);
    std::fflush(stderr);
    written_ = false;
  }

  const std::optional<Seconds> patience_ = patience_from_environment();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<CompileProgress::Running> running_;  // oldest first
  pid_t thread_owner_ = 0;
  bool written_ = false;
};

}  // namespace

CompileProgress::CompileProgress(std::string_view what, std::string_view text) {
  Reporter& reporter = Reporter::get();
  if (!reporter.wanted()) return;
  place_ = reporter.add({what, text, Clock::now()});
  shown_ = true;
}

CompileProgress::~CompileProgress() {
  if (shown_) Reporter::get().remove(place_);
}

}  // namespace torch_tpu::runtime
