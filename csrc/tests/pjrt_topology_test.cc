#include <gtest/gtest.h>

#include <cstdlib>
#include <future>
#include <string>
#include <vector>

#include "pjrt/discovery.h"
#include "pjrt/error.h"
#include "pjrt/topology.h"
#include "tests/pjrt_test_support.h"

namespace torch_tpu::pjrt {
namespace {

constexpr const char* kAdd = R"(
module {
  func.func @main(%a: tensor<1024xf32>, %b: tensor<1024xf32>) -> tensor<1024xf32> {
    %c = stablehlo.add %a, %b : tensor<1024xf32>
    return %c : tensor<1024xf32>
  }
})";

const CompileOptions kOptions{.portable = false, .env_overrides = {}};

// libtpu is optional: ctest sets the variable where its package is installed.
class TopologyTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* const libtpu = std::getenv("TORCH_TPU_TEST_LIBTPU");
    if (libtpu == nullptr) {
      GTEST_SKIP() << "set TORCH_TPU_TEST_LIBTPU to the path of libtpu.so";
    }
    plugin = load_compiler(libtpu, tpu_hardware_present({}));
  }

  std::shared_ptr<Plugin> plugin;
};

TEST_F(TopologyTest, DescribesTheDevices) {
  const Topology v5e(plugin, "v5e:2x2");
  EXPECT_EQ(v5e.name(), "v5e:2x2");
  EXPECT_EQ(v5e.device_kind(), "TPU v5 lite");
  EXPECT_EQ(v5e.num_devices(), 4);
  EXPECT_GT(v5e.device_memory(), int64_t{15} << 30);
  EXPECT_EQ(Topology(plugin, "tpu7x:2x2x1").num_devices(), 8);  // two a chip
}

TEST_F(TopologyTest, RefusesAnUnknownName) {
  try {
    Topology(plugin, "v99:2x2");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), PJRT_Error_Code_INVALID_ARGUMENT);
    EXPECT_TRUE(says(error.what(), {"[topology]", "v99"}));
  }
}

TEST_F(TopologyTest, LoadingLeavesTheEnvironmentAlone) {
  for (const char* const name :
       {"TPU_ACCELERATOR_TYPE", "TPU_WORKER_ID", "TPU_WORKER_HOSTNAMES", "TPU_SKIP_MDS_QUERY",
        "ALLOW_MULTIPLE_LIBTPU_LOAD", "CLOUD_TPU_ACCELERATOR_TYPE"}) {
    EXPECT_EQ(std::getenv(name), nullptr) << name;
  }
}

TEST_F(TopologyTest, CompiledProgramOutlivesItsTopology) {
  const auto program = [this] { return Topology(plugin, "v5e:2x2").compile(kAdd, kOptions); }();
  EXPECT_EQ(program.num_outputs(), 1);
  EXPECT_FALSE(program.serialize().empty());
  const MemoryStats memory = program.memory_stats();
  EXPECT_EQ(memory.arguments, 2 * 4096);
  EXPECT_EQ(memory.outputs, 4096);
  EXPECT_GE(memory.peak, memory.arguments + memory.outputs);
  EXPECT_EQ(program.cost_analysis().at("flops"), 1024);
}

TEST_F(TopologyTest, CompileErrorCarriesTheCompilersMessage) {
  const Topology topology(plugin, "v5e:2x2");
  try {
    topology.compile("module { func.func @main() -> tensor<f32> { return %no : tensor<f32> } }",
                     kOptions);
    FAIL();
  } catch (const Error& error) {
    EXPECT_TRUE(says(error.what(), {"[compile]", "undeclared SSA value"}));
  }
  EXPECT_EQ(topology.compile(kAdd, kOptions).num_outputs(), 1);  // and life goes on
}

TEST_F(TopologyTest, ManyThreads) {
  std::vector<std::future<int64_t>> results;
  for (const char* const name : {"v5e:2x2", "v6e:2x2", "tpu7x:2x2x1", "v5e:2x2"}) {
    results.push_back(std::async(std::launch::async, [this, name] {
      return Topology(plugin, name).compile(kAdd, kOptions).memory_stats().arguments;
    }));
  }
  for (auto& result : results) EXPECT_EQ(result.get(), 2 * 4096);
}

}  // namespace
}  // namespace torch_tpu::pjrt
