// The process's one PJRT client and its devices, made on first use.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "pjrt/client.h"
#include "pjrt/discovery.h"
#include "runtime/device_buffer.h"

namespace torch_tpu::runtime {

class Runtime {
 public:
  // Loads the plugin and makes the client on first call; throws pjrt::Error when that fails (and
  // tries again on the next call). Lives until the process ends: the plugin's threads may still
  // be running when static objects are destroyed.
  static Runtime& get();
  // Whether get() has succeeded; never loads anything.
  static bool initialized();
  // Where plugins may be found; asked once, on first use.
  static void set_plugin_search(std::function<pjrt::PluginSearch()> search);
  // The number of devices, without making a client where the answer is known before (CPU
  // plugins). 0 when there is no usable plugin.
  static int device_count() noexcept;
  // True in a child that was forked after the client was made; the client cannot be used there.
  static bool in_bad_fork();

  pjrt::Client& client() const { return *client_; }
  const pjrt::PluginChoice& plugin() const { return choice_; }
  const pjrt::Device& device(int index) const;
  int num_devices() const { return static_cast<int>(client_->devices().size()); }
  bool is_cpu() const { return is_cpu_; }
  std::string platform() const { return client_->platform_name(); }

  // Copies a dense row-major host array to a device. With `keep_alive` the copy is asynchronous and
  // keep_alive is released when the host memory is no longer read; without, host memory may
  // change after the call. Throws pjrt::Error.
  DeviceBufferPtr to_device(const void* data, const Layout* layout, int device,
                            std::shared_ptr<void> keep_alive = nullptr);
  // Waits and copies to dense row-major host memory of layout()->nbytes.
  void to_host(const DeviceBuffer& buffer, void* dst);

 private:
  Runtime();

  pjrt::PluginChoice choice_;
  std::shared_ptr<pjrt::Client> client_;
  bool is_cpu_ = false;
};

PJRT_Buffer_Type to_pjrt(stablehlo::ElementType type);

}  // namespace torch_tpu::runtime
