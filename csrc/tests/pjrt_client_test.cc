#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <stdexcept>
#include <thread>

#include "pjrt/client.h"
#include "pjrt/error.h"
#include "tests/pjrt_test_support.h"

namespace torch_tpu::pjrt {
namespace {

using ClientTest = PluginTest;

TEST_F(ClientTest, Devices) {
  ASSERT_EQ(client->devices().size(), 2);
  EXPECT_NE(device(0).id, device(1).id);
  EXPECT_NE(device(0).handle, device(1).handle);
  EXPECT_FALSE(device(0).kind.empty());
  EXPECT_EQ(client->platform_name(), "cpu");
  EXPECT_FALSE(client->platform_version().empty());
  const auto stats = device(0).memory_stats();  // counted or not, but no error
  EXPECT_GE(stats.value_or(DeviceMemoryStats{}).bytes_in_use, 0);
}

TEST_F(ClientTest, SeveralClients) {
  const auto other = Client::create(client->plugin(), {{"cpu_device_count", int64_t{3}}});
  EXPECT_EQ(other->devices().size(), 3);
  EXPECT_EQ(client->devices().size(), 2);
}

struct RoundTripCase {
  const char* name;
  PJRT_Buffer_Type type;
  size_t item_size;
  std::vector<int64_t> dims;
};

class RoundTrip : public PluginTest, public ::testing::WithParamInterface<RoundTripCase> {};

TEST_P(RoundTrip, HostDeviceHost) {
  const RoundTripCase& test = GetParam();
  size_t count = 1;
  for (const int64_t dim : test.dims) count *= static_cast<size_t>(dim);
  std::vector<unsigned char> sent(count * test.item_size);
  for (size_t i = 0; i < sent.size(); ++i) {
    sent[i] = static_cast<unsigned char>(test.type == PJRT_Buffer_Type_PRED ? i % 2 : i * 7 % 60);
  }
  for (const HostSemantics semantics :
       {HostSemantics::ImmutableOnlyDuringCall, HostSemantics::ImmutableUntilTransferCompletes,
        HostSemantics::ImmutableZeroCopy}) {
    std::promise<void> released;
    {
      const Buffer buffer =
          client->buffer_from_host(sent.empty() ? nullptr : sent.data(), test.type, test.dims,
                                   device(), semantics, [&released] { released.set_value(); });
      EXPECT_TRUE(buffer);
      EXPECT_EQ(buffer.element_type(), test.type);
      EXPECT_EQ(buffer.dimensions(), test.dims);
      EXPECT_GE(buffer.on_device_size(), sent.size());
      EXPECT_FALSE(buffer.is_deleted());
      buffer.ready().await();
      std::vector<unsigned char> received(sent.size(), 0xee);
      buffer.to_host(received.empty() ? nullptr : received.data(), received.size()).await();
      EXPECT_EQ(received, sent);
      std::vector<unsigned char> copied(sent.size(), 0xee);
      buffer.read(copied.empty() ? nullptr : copied.data(), copied.size());
      EXPECT_EQ(copied, sent);
    }
    released.get_future().wait();  // hangs if the callback is lost, and throws if it comes twice
  }
}

INSTANTIATE_TEST_SUITE_P(
    Types, RoundTrip,
    ::testing::Values(RoundTripCase{"f32", PJRT_Buffer_Type_F32, 4, {2, 3, 5}},
                      RoundTripCase{"f64", PJRT_Buffer_Type_F64, 8, {7}},
                      RoundTripCase{"f16", PJRT_Buffer_Type_F16, 2, {3, 3}},
                      RoundTripCase{"bf16", PJRT_Buffer_Type_BF16, 2, {4, 3}},
                      RoundTripCase{"pred", PJRT_Buffer_Type_PRED, 1, {5, 3}},
                      RoundTripCase{"s8", PJRT_Buffer_Type_S8, 1, {9}},
                      RoundTripCase{"u8", PJRT_Buffer_Type_U8, 1, {1, 1, 1, 1, 3}},
                      RoundTripCase{"s16", PJRT_Buffer_Type_S16, 2, {3, 2}},
                      RoundTripCase{"s32", PJRT_Buffer_Type_S32, 4, {3, 2}},
                      RoundTripCase{"s64", PJRT_Buffer_Type_S64, 8, {3, 2}},
                      RoundTripCase{"c64", PJRT_Buffer_Type_C64, 8, {2, 2}},
                      RoundTripCase{"f8e4m3fn", PJRT_Buffer_Type_F8E4M3FN, 1, {6}},
                      RoundTripCase{"scalar", PJRT_Buffer_Type_F32, 4, {}},
                      RoundTripCase{"scalar_pred", PJRT_Buffer_Type_PRED, 1, {}},
                      RoundTripCase{"empty", PJRT_Buffer_Type_F32, 4, {0}},
                      RoundTripCase{"empty_2d", PJRT_Buffer_Type_S64, 8, {3, 0}},
                      RoundTripCase{"large", PJRT_Buffer_Type_F32, 4, {512, 1024}}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_F(ClientTest, ToHostNeedsRoom) {
  const Buffer buffer = upload({1, 2, 3, 4}, {4});
  std::vector<float> small(2);
  try {
    buffer.to_host(small.data(), small.size() * sizeof(float)).await();
    FAIL();
  } catch (const Error& error) {
    EXPECT_TRUE(says(error.what(), {"[copy to host]"}));
  }
  EXPECT_THROW(buffer.to_host(nullptr, 16), Error);
  EXPECT_THROW(buffer.read(small.data(), small.size() * sizeof(float)), Error);
}

TEST_F(ClientTest, UnsafePointerReadsTheData) {
  const Buffer buffer = upload({1, 2, 3}, {3});
  buffer.ready().await();
  EXPECT_EQ(static_cast<const float*>(buffer.unsafe_pointer())[2], 3);
}

TEST_F(ClientTest, CopyToDevice) {
  const Buffer source = upload({1, 2, 3}, {3});
  const Buffer copy = source.copy_to_device(device(1));
  EXPECT_EQ(download(copy), (std::vector<float>{1, 2, 3}));
  EXPECT_EQ(download(source), (std::vector<float>{1, 2, 3}));
  EXPECT_NE(copy.unsafe_pointer(), source.unsafe_pointer());
}

TEST_F(ClientTest, BufferOwnership) {
  Buffer a = upload({1}, {1});
  PJRT_Buffer* const handle = a.handle();
  Buffer b = std::move(a);
  EXPECT_FALSE(a);  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(b.handle(), handle);
  Buffer c = upload({2}, {1});
  c = std::move(b);
  EXPECT_EQ(c.handle(), handle);
  EXPECT_FALSE(b);  // NOLINT(bugprone-use-after-move)
  c.reset();
  EXPECT_FALSE(c);
  c.reset();
  b = upload({3}, {1});
  const Buffer d = Buffer::adopt(client->api(), b.release());
  EXPECT_FALSE(b);
  EXPECT_EQ(download(d), std::vector<float>{3});
}

TEST_F(ClientTest, EventCallbacks) {
  const Buffer buffer = upload({1}, {1});
  std::promise<bool> succeeded;
  buffer.ready().on_ready([&](const std::string* error) { succeeded.set_value(error == nullptr); });
  EXPECT_TRUE(succeeded.get_future().get());

  // What a callback throws stays in it.
  std::promise<void> called;
  buffer.ready().on_ready([&](const std::string*) {
    called.set_value();
    throw std::runtime_error("dropped");
  });
  called.get_future().wait();

  Event event = buffer.ready();
  event.await();
  EXPECT_TRUE(event.is_ready());
  const Event moved = std::move(event);
  EXPECT_FALSE(event);  // NOLINT(bugprone-use-after-move)
  EXPECT_TRUE(moved.is_ready());
}

TEST_F(ClientTest, ManyCallbacksFromManyCopies) {
  constexpr int kCopies = 200;
  const std::vector<float> data(1000, 1.5f);
  std::atomic<int> count = 0;
  std::vector<Buffer> buffers;
  std::vector<std::vector<float>> results(kCopies, std::vector<float>(data.size()));
  for (int i = 0; i < kCopies; ++i) {
    const std::vector<int64_t> dims = {1000};
    buffers.push_back(client->buffer_from_host(data.data(), PJRT_Buffer_Type_F32, dims, device(),
                                               HostSemantics::ImmutableUntilTransferCompletes,
                                               [&count] { ++count; }));
    buffers.back().to_host(results[i].data(), 4000).on_ready([&count](const std::string* error) {
      if (error == nullptr) ++count;
    });
  }
  while (count < 2 * kCopies) std::this_thread::yield();
  for (const auto& result : results) EXPECT_EQ(result, data);
}

}  // namespace
}  // namespace torch_tpu::pjrt
