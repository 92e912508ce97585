#pragma once

#include <pjrt_c_api.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pjrt/buffer.h"
#include "pjrt/compile_options.h"
#include "pjrt/device.h"
#include "pjrt/executable.h"
#include "pjrt/option.h"
#include "pjrt/plugin.h"

namespace torch_tpu::pjrt {

// What the plugin may do with host memory handed to buffer_from_host.
enum class HostSemantics {
  // Reads it only during the call (it copies).
  ImmutableOnlyDuringCall,
  // May read it until the transfer is done; then calls done_with_host.
  ImmutableUntilTransferCompletes,
  // May use it as the buffer's own memory, never writing it; calls done_with_host when the buffer
  // is gone.
  ImmutableZeroCopy,
};

// A plugin's client: the devices of this process, their memory and compiler. Thread-safe.
class Client : public std::enable_shared_from_this<Client> {
 public:
  // `options` are the plugin's own; CPU plugins want {"cpu_device_count", int64_t}.
  static std::shared_ptr<Client> create(std::shared_ptr<Plugin> plugin, const Options& options);

  // The devices this process can use, in the plugin's order.
  std::span<const Device> devices() const noexcept { return devices_; }
  std::string platform_name() const;     // "cpu", "tpu", ...
  std::string platform_version() const;  // for people; Plugin::identity() tells builds apart

  std::shared_ptr<Executable> compile(std::string_view stablehlo_text,
                                      const CompileOptions& options);
  // Loads what Executable::serialize wrote with the same plugin build.
  std::shared_ptr<Executable> deserialize(std::string_view bytes);

  // Copies (or borrows, see HostSemantics) a dense row-major array. `done_with_host` may be empty;
  // it runs once, on this thread or one of the plugin's, must not throw and should not block.
  Buffer buffer_from_host(const void* data, PJRT_Buffer_Type element_type,
                          std::span<const int64_t> dims, const Device& device,
                          HostSemantics semantics, std::function<void()> done_with_host);

  const std::shared_ptr<Plugin>& plugin() const noexcept { return plugin_; }
  const PJRT_Api* api() const noexcept { return plugin_->api(); }
  PJRT_Client* handle() const noexcept { return handle_.get(); }

 private:
  struct Deleter {
    const PJRT_Api* api;
    void operator()(PJRT_Client* handle) const noexcept;
  };

  struct OnlyCreate {  // so that create, and nobody else, can std::make_shared
    explicit OnlyCreate() = default;
  };

 public:
  Client(OnlyCreate, std::shared_ptr<Plugin> plugin, PJRT_Client* handle);

 private:
  std::shared_ptr<Plugin> plugin_;
  std::unique_ptr<PJRT_Client, Deleter> handle_;
  std::vector<Device> devices_;
};

}  // namespace torch_tpu::pjrt
