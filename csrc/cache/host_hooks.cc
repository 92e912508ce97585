#include "cache/host_hooks.h"

#include <atomic>
#include <cstdio>
#include <memory>

namespace torch_tpu::cache {

namespace {

// Owned by the process: replaced ones are kept, since another thread may be inside of them, and
// there is no lock that a fork could leave locked.
std::atomic<const HostHooks*>& current() {
  static std::atomic<const HostHooks*> hooks{nullptr};
  return hooks;
}

}  // namespace

void set_host_hooks(HostHooks hooks) {
  current().store(std::make_unique<const HostHooks>(std::move(hooks)).release(),
                  std::memory_order_release);
}

void log_line(const std::string& line) {
  const HostHooks* hooks = current().load(std::memory_order_acquire);
  if (hooks && hooks->log) {
    hooks->log(line);
  } else {
    std::fputs(("torch_tpu: " + line + "\n").c_str(), stderr);  // one call: lines stay whole
  }
}

void blocking(const std::function<void()>& wait) {
  const HostHooks* hooks = current().load(std::memory_order_acquire);
  if (hooks && hooks->blocking) {
    hooks->blocking(wait);
  } else {
    wait();
  }
}

}  // namespace torch_tpu::cache
