// What the cache needs from the program it is part of.
#pragma once

#include <functional>
#include <string>

namespace torch_tpu::cache {

struct HostHooks {
  // Gets one line without a line break, in any thread, with none of the cache's locks held.
  std::function<void(const std::string& line)> log;
  // Everything that waits (for other processes, for a slow tier, for the writer) is called through
  // this one, which may let go of an interpreter's lock around it.
  std::function<void(const std::function<void()>& wait)> blocking;
};

// A member left empty keeps its default: standard error, and a plain call.
void set_host_hooks(HostHooks hooks);

void log_line(const std::string& line);
void blocking(const std::function<void()>& wait);

}  // namespace torch_tpu::cache
