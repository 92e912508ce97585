#include <gtest/gtest.h>

#include <array>
#include <future>
#include <thread>

#include "pjrt/error.h"
#include "pjrt/executable.h"
#include "tests/pjrt_test_support.h"

namespace torch_tpu::pjrt {
namespace {

constexpr const char* kAdd = R"(
module {
  func.func @main(%a: tensor<3xf32>, %b: tensor<3xf32>) -> tensor<3xf32> {
    %c = stablehlo.add %a, %b : tensor<3xf32>
    return %c : tensor<3xf32>
  }
})";

// The result may take over the first argument's memory.
constexpr const char* kDonatingAdd = R"(
module {
  func.func @main(%a: tensor<3xf32> {tf.aliasing_output = 0 : i32}, %b: tensor<3xf32>)
      -> tensor<3xf32> {
    %c = stablehlo.add %a, %b : tensor<3xf32>
    return %c : tensor<3xf32>
  }
})";

constexpr const char* kTwoOutputs = R"(
module {
  func.func @main(%a: tensor<3xf32>) -> (tensor<3xf32>, tensor<i32>) {
    %n = stablehlo.constant dense<7> : tensor<i32>
    %c = stablehlo.negate %a : tensor<3xf32>
    return %c, %n : tensor<3xf32>, tensor<i32>
  }
})";

class ExecutableTest : public PluginTest {
 protected:
  std::shared_ptr<Executable> compile(const char* program) const {
    return client->compile(program, {});
  }
};

TEST_F(ExecutableTest, Add) {
  const auto add = compile(kAdd);
  EXPECT_EQ(add->num_outputs(), 1);
  const Buffer a = upload({1, 2, 3}, {3});
  const Buffer b = upload({10, 20, 30}, {3});
  EXPECT_EQ(download(run(*add, {&a, &b})), (std::vector<float>{11, 22, 33}));
  EXPECT_EQ(download(run(*add, {&a, &a})), (std::vector<float>{2, 4, 6}));
}

TEST_F(ExecutableTest, RunsInOrderWithoutWaiting) {
  const auto add = compile(kAdd);
  const Buffer one = upload({1, 1, 1}, {3});
  Buffer sum = upload({0, 0, 0}, {3});
  for (int i = 0; i < 1000; ++i) sum = run(*add, {&sum, &one});
  EXPECT_EQ(download(sum), (std::vector<float>{1000, 1000, 1000}));
}

TEST_F(ExecutableTest, ManyThreads) {
  const auto add = compile(kAdd);
  std::vector<std::future<float>> results;
  results.reserve(4);
  for (int thread = 0; thread < 4; ++thread) {
    results.push_back(std::async(std::launch::async, [&, thread] {
      const auto value = static_cast<float>(thread);
      const Buffer step = upload({value, value, value}, {3});
      Buffer sum = upload({0, 0, 0}, {3});
      for (int i = 0; i < 200; ++i) sum = run(*add, {&sum, &step});
      return download(sum)[0];
    }));
  }
  for (int thread = 0; thread < 4; ++thread) {
    EXPECT_EQ(results[thread].get(), static_cast<float>(200 * thread));
  }
}

TEST_F(ExecutableTest, SeveralOutputs) {
  const auto program = compile(kTwoOutputs);
  ASSERT_EQ(program->num_outputs(), 2);
  const Buffer a = upload({1, 2, 3}, {3});
  PJRT_Buffer* const arg = a.handle();
  std::array<PJRT_Buffer*, 2> outputs{};
  program->execute(&arg, 1, outputs.data(), {}, device().handle);
  const Buffer first = Buffer::adopt(client->api(), outputs[0]);
  const Buffer second = Buffer::adopt(client->api(), outputs[1]);
  EXPECT_EQ(download(first), (std::vector<float>{-1, -2, -3}));
  EXPECT_EQ(second.element_type(), PJRT_Buffer_Type_S32);
  int32_t value = 0;
  second.to_host(&value, sizeof(value)).await();
  EXPECT_EQ(value, 7);
}

TEST_F(ExecutableTest, ResultOfATransposeIsReadRowMajor) {
  const auto transpose = compile(R"(
module {
  func.func @main(%a: tensor<2x3xf32>) -> tensor<3x2xf32> {
    %c = stablehlo.transpose %a, dims = [1, 0] : (tensor<2x3xf32>) -> tensor<3x2xf32>
    return %c : tensor<3x2xf32>
  }
})");
  const Buffer matrix = upload({1, 2, 3, 4, 5, 6}, {2, 3});
  const Buffer result = run(*transpose, {&matrix});
  const std::vector<float> expected = {1, 4, 2, 5, 3, 6};
  EXPECT_EQ(download(result), expected);
  std::vector<float> values(6);
  result.read(values.data(), 24);
  EXPECT_EQ(values, expected);
}

TEST_F(ExecutableTest, ReadWaitsForTheValue) {
  const auto add = compile(kAdd);
  const Buffer one = upload({1, 1, 1}, {3});
  std::vector<float> values(3);
  for (int i = 0; i < 200; ++i) {
    run(*add, {&one, &one}).read(values.data(), 12);
    EXPECT_EQ(values, (std::vector<float>{2, 2, 2}));
    values = {0, 0, 0};
  }
}

TEST_F(ExecutableTest, CompileErrorCarriesTheCompilersMessage) {
  try {
    compile("module { func.func @main() -> tensor<f32> { return %nothing : tensor<f32> } }");
    FAIL();
  } catch (const Error& error) {
    EXPECT_TRUE(says(error.what(), {"[compile]", "undeclared SSA value"}));
  }
  EXPECT_TRUE(compile(kAdd));  // and life goes on
}

TEST_F(ExecutableTest, ExecuteErrors) {
  const auto add = compile(kAdd);
  const Buffer a = upload({1, 2, 3}, {3});
  const Buffer wrong = upload({1, 2, 3, 4}, {4});
  EXPECT_THROW(run(*add, {&a}), Error);
  EXPECT_THROW(run(*add, {&a, &wrong}), Error);
  EXPECT_EQ(download(run(*add, {&a, &a})), (std::vector<float>{2, 4, 6}));
}

TEST_F(ExecutableTest, DonationConsumesTheArgument) {
  const auto add = compile(kDonatingAdd);
  const Buffer a = upload({1, 2, 3}, {3});
  const Buffer b = upload({10, 20, 30}, {3});
  a.ready().await();
  const void* const memory = a.unsafe_pointer();
  const Buffer sum = run(*add, {&a, &b});
  EXPECT_EQ(download(sum), (std::vector<float>{11, 22, 33}));
  EXPECT_EQ(sum.unsafe_pointer(), memory);
  EXPECT_TRUE(a.is_deleted());
  EXPECT_FALSE(b.is_deleted());
  EXPECT_THROW(run(*add, {&a, &b}), Error);
}

TEST_F(ExecutableTest, NonDonatableArgumentSurvives) {
  const auto add = compile(kDonatingAdd);
  const Buffer a = upload({1, 2, 3}, {3});
  const Buffer b = upload({10, 20, 30}, {3});
  const std::array<int64_t, 1> keep = {0};
  const Buffer sum = run(*add, {&a, &b}, keep);
  EXPECT_FALSE(a.is_deleted());
  EXPECT_EQ(download(sum), (std::vector<float>{11, 22, 33}));
  EXPECT_EQ(download(a), (std::vector<float>{1, 2, 3}));
  // One array in both places cannot be given away.
  EXPECT_EQ(download(run(*add, {&b, &b}, keep)), (std::vector<float>{20, 40, 60}));
}

TEST_F(ExecutableTest, OneProgramServesEveryDevice) {
  const auto add = compile(kAdd);
  for (const size_t index : {size_t{0}, size_t{1}, size_t{0}}) {
    const Buffer a = upload({1, 2, 3}, {3}, index);
    const Buffer sum = run(*add, {&a, &a}, {}, index);
    EXPECT_EQ(download(sum), (std::vector<float>{2, 4, 6}));
    // The result is where it was computed: a copy to the other device works, to this one not.
    EXPECT_EQ(download(sum.copy_to_device(device(1 - index))), (std::vector<float>{2, 4, 6}));
    EXPECT_EQ(download(run(*add, {&sum, &a}, {}, index)), (std::vector<float>{3, 6, 9}));
  }
}

TEST_F(ExecutableTest, SerializedProgramRunsOnEveryDevice) {
  const std::string bytes = compile(kAdd)->serialize();
  EXPECT_FALSE(bytes.empty());
  const auto add = client->deserialize(bytes);
  EXPECT_EQ(add->num_outputs(), 1);
  for (const size_t index : {size_t{0}, size_t{1}}) {
    const Buffer a = upload({1, 2, 3}, {3}, index);
    EXPECT_EQ(download(run(*add, {&a, &a}, {}, index)), (std::vector<float>{2, 4, 6}));
  }
}

TEST_F(ExecutableTest, SerializedDonationIsKept) {
  const auto add = client->deserialize(compile(kDonatingAdd)->serialize());
  const Buffer a = upload({1, 2, 3}, {3});
  const Buffer b = upload({10, 20, 30}, {3});
  EXPECT_EQ(download(run(*add, {&a, &b})), (std::vector<float>{11, 22, 33}));
  EXPECT_TRUE(a.is_deleted());
}

TEST_F(ExecutableTest, DeserializeRefusesRubbish) {
  EXPECT_THROW(client->deserialize("not a program"), Error);
}

TEST_F(ExecutableTest, KeepsItsClientAlive) {
  auto own = Client::create(client->plugin(), {{"cpu_device_count", int64_t{1}}});
  const auto add = own->compile(kAdd, {});
  const std::weak_ptr<Client> observer = own;
  own.reset();
  EXPECT_FALSE(observer.expired());
  EXPECT_FALSE(add->serialize().empty());
}

TEST_F(ExecutableTest, EnvOverridesReachTheCompiler) {
  CompileOptions options;
  options.env_overrides = {{"xla_cpu_enable_fast_math", false}};
  EXPECT_TRUE(client->compile(kAdd, options));
  options.env_overrides = {{"xla_no_such_flag", int64_t{1}}};
  try {
    client->compile(kAdd, options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_TRUE(says(error.what(), {"xla_no_such_flag"}));
  }
}

TEST_F(ExecutableTest, Fingerprint) {
  try {
    EXPECT_EQ(compile(kAdd)->fingerprint(), compile(kAdd)->fingerprint());
    EXPECT_NE(compile(kAdd)->fingerprint(), compile(kTwoOutputs)->fingerprint());
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), PJRT_Error_Code_UNIMPLEMENTED) << error.what();
  }
}

TEST_F(ExecutableTest, NotPortable) {
  CompileOptions options;
  options.portable = false;
  const auto program = client->compile(kTwoOutputs, options);
  const Buffer a = upload({1, 2, 3}, {3});
  PJRT_Buffer* const arg = a.handle();
  std::array<PJRT_Buffer*, 2> outputs{};
  program->execute(&arg, 1, outputs.data(), {}, nullptr);  // where it was compiled for
  const Buffer first = Buffer::adopt(client->api(), outputs[0]);
  const Buffer second = Buffer::adopt(client->api(), outputs[1]);
  EXPECT_EQ(download(first), (std::vector<float>{-1, -2, -3}));
}

TEST_F(ExecutableTest, MemoryStats) {
  const MemoryStats memory = compile(kAdd)->memory_stats();
  EXPECT_EQ(memory.arguments, 24);
  EXPECT_EQ(memory.outputs, 12);
  EXPECT_EQ(memory.aliased, 0);
  EXPECT_EQ(compile(kDonatingAdd)->memory_stats().aliased, 12);
}

TEST_F(ExecutableTest, CostAnalysis) {
  try {
    const CostAnalysis costs = compile(kAdd)->cost_analysis();
    ASSERT_TRUE(costs.contains("flops"));
    EXPECT_EQ(costs.at("flops"), 3);
    EXPECT_EQ(costs.at("bytes accessed"), 36);
  } catch (const Error& error) {
    // Newer CPU plugins estimate nothing.
    EXPECT_EQ(error.code(), PJRT_Error_Code_UNIMPLEMENTED) << error.what();
  }
}

}  // namespace
}  // namespace torch_tpu::pjrt
