#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "pjrt/client.h"

namespace torch_tpu::pjrt {

// Whether a message has all the parts a reader needs.
inline ::testing::AssertionResult says(const std::string& message,
                                       std::initializer_list<std::string> parts) {
  for (const std::string& part : parts) {
    if (message.find(part) == std::string::npos) {
      return ::testing::AssertionFailure() << "no \"" << part << "\" in: " << message;
    }
  }
  return ::testing::AssertionSuccess();
}

// The plugin under test, or null when the variable is not set (ctest sets it).
inline const char* test_plugin_path() { return std::getenv("TORCH_TPU_TEST_PLUGIN"); }

// Tests that need a plugin, through one client with two CPU devices.
class PluginTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (test_plugin_path() == nullptr) {
      GTEST_SKIP() << "set TORCH_TPU_TEST_PLUGIN to the path of a CPU PJRT plugin";
    }
    static const std::shared_ptr<Client> shared =
        Client::create(Plugin::load(test_plugin_path()), {{"cpu_device_count", int64_t{2}}});
    client = shared;
  }

  const Device& device(size_t index = 0) const { return client->devices()[index]; }

  Buffer upload(const std::vector<float>& values, const std::vector<int64_t>& dims,
                size_t device_index = 0) const {
    return client->buffer_from_host(values.data(), PJRT_Buffer_Type_F32, dims, device(device_index),
                                    HostSemantics::ImmutableOnlyDuringCall, {});
  }

  static std::vector<float> download(const Buffer& buffer) {
    size_t count = 1;
    for (const int64_t dim : buffer.dimensions()) count *= static_cast<size_t>(dim);
    std::vector<float> values(count);
    buffer.to_host(values.data(), count * sizeof(float)).await();
    return values;
  }

  // Runs a program with one output.
  Buffer run(const Executable& executable, const std::vector<const Buffer*>& args,
             std::span<const int64_t> non_donatable = {}, size_t device_index = 0) const {
    std::vector<PJRT_Buffer*> handles;
    for (const Buffer* const arg : args) handles.push_back(arg->handle());
    PJRT_Buffer* output = nullptr;
    executable.execute(handles.data(), handles.size(), &output, non_donatable,
                       device(device_index).handle);
    return Buffer::adopt(client->api(), output);
  }

  std::shared_ptr<Client> client;
};

}  // namespace torch_tpu::pjrt
