#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "pjrt/error.h"
#include "pjrt/flag_names.h"
#include "tests/pjrt_test_support.h"

namespace torch_tpu::pjrt {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

// A plugin's file as far as names go.
class FlagNames : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = fs::path(::testing::TempDir()) / ("flag_names_" + std::to_string(getpid()));
    std::ofstream(path_) << "xla_cpu_enable_fast_math" << '\0' << "\x7fxla_gpu_enable_fast_math"
                         << '\0' << "not_xla_cpu_enable_fast_matt" << '\0' << "xla_" << '\0'
                         << "xla_cpu_max_isa";
  }
  void TearDown() override { fs::remove(path_); }

  Names like(const std::string& name) const {
    return flags_like(path_, name, [](const std::string&) { return true; });
  }

  std::string path_;
};

TEST_F(FlagNames, TheNearestFirst) {
  EXPECT_EQ(like("xla_cpu_enable_fast_mat"),
            (Names{"xla_cpu_enable_fast_math", "xla_gpu_enable_fast_math"}));
  EXPECT_EQ(like("xla_cpu_maxisa"), Names{"xla_cpu_max_isa"});
  EXPECT_EQ(like("xla_something_else"), Names{});
  EXPECT_EQ(like(std::string(100'000, 'x')), Names{});
}

TEST_F(FlagNames, OnlyThoseThatTheCompilerKnows) {
  Names asked;
  const auto is_known = [&](const std::string& name) {
    asked.push_back(name);
    return name == "xla_gpu_enable_fast_math";
  };
  EXPECT_EQ(flags_like(path_, "xla_cpu_enable_fast_mat", is_known),
            Names{"xla_gpu_enable_fast_math"});
  EXPECT_EQ(asked, (Names{"xla_cpu_enable_fast_math", "xla_gpu_enable_fast_math"}));
}

TEST_F(FlagNames, NoFile) {
  EXPECT_EQ(
      flags_like(path_ + ".missing", "xla_cpu_max_isa", [](const std::string&) { return true; }),
      Names{});
}

TEST_F(FlagNames, InWords) {
  const std::set<std::string> known = {"xla_cpu_enable_fast_math", "xla_gpu_enable_fast_math"};
  const auto refusal = [&](const std::string& name, const std::string& value) -> std::string {
    EXPECT_EQ(value, "");
    return known.contains(name) ? "not a bool" : "No such compile option: '" + name + "'";
  };
  EXPECT_EQ(flag_suggestion(path_, "xla_cpu_enable_fast_mat", refusal),
            "; did you mean xla_cpu_enable_fast_math or xla_gpu_enable_fast_math?");
  // It is there: what was refused is its value.
  EXPECT_EQ(flag_suggestion(path_, "xla_cpu_enable_fast_math", refusal), "");
  EXPECT_EQ(flag_suggestion(path_, "xla_cpu_max_is", refusal), "");
}

TEST_F(PluginTest, TheFlagsOfAPlugin) {
  const auto refusal = [&](const std::string& name, const std::string& value) -> std::string {
    CompileOptions options;
    options.env_overrides = {{name, value}};
    try {
      client->compile(
          "module { func.func @main(%a: tensor<f32>) -> tensor<f32> { return %a : tensor<f32> } }",
          options);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(flag_suggestion(test_plugin_path(), "xla_cpu_enable_fast_mat", refusal),
            "; did you mean xla_cpu_enable_fast_math?");
}

}  // namespace
}  // namespace torch_tpu::pjrt
