#include <gtest/gtest.h>
#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <fstream>

#include "pjrt/api.h"
#include "pjrt/error.h"
#include "pjrt/plugin.h"
#include "tests/pjrt_test_support.h"

namespace torch_tpu::pjrt {
namespace {

// The error of loading `path`.
Error load_error(const std::string& path) {
  try {
    Plugin::load(path);
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << path << " was loaded";
  return Error(PJRT_Error_Code_OK, "");
}

TEST(Plugin, MissingFile) {
  const Error error = load_error("/no/such/plugin.so");
  EXPECT_EQ(error.code(), PJRT_Error_Code_NOT_FOUND);
  EXPECT_TRUE(says(error.what(), {"/no/such/plugin.so", "found no file"}));
}

TEST(Plugin, NotALibrary) {
  const std::string path = ::testing::TempDir() + "not_a_library.so";
  std::ofstream(path) << "text";
  EXPECT_TRUE(says(load_error(path).what(), {path, "the system cannot load it"}));
}

TEST(Plugin, LibraryThatIsNotAPlugin) {
  EXPECT_TRUE(says(load_error("libm.so.6").what(), {"does not export GetPjrtApi"}));
}

TEST(Plugin, OtherMajorVersion) {
  EXPECT_TRUE(says(load_error(TORCH_TPU_TEST_OTHER_MAJOR_PLUGIN).what(),
                   {"expected PJRT API major version 0", "7.3"}));
}

TEST(Plugin, FailureIsNotRemembered) {
  const std::string first = load_error("/no/such/plugin.so").what();
  EXPECT_EQ(first, load_error("/no/such/plugin.so").what());
}

TEST(Plugin, FunctionsBeyondAnOlderPluginsTableAreNotTouched) {
  PJRT_Api api{};
  api.pjrt_api_version.minor_version = 40;
  api.struct_size = offsetof(PJRT_Api, PJRT_Executable_Fingerprint);
  api.PJRT_Compile = [](PJRT_Compile_Args*) -> PJRT_Error* { return nullptr; };
  // What lies after an older plugin's table is not a function, whatever it looks like.
  api.PJRT_Executable_Fingerprint = [](PJRT_Executable_Fingerprint_Args*) -> PJRT_Error* {
    return nullptr;
  };
  EXPECT_TRUE(has_function(&api, &PJRT_Api::PJRT_Compile));
  EXPECT_FALSE(has_function(&api, &PJRT_Api::PJRT_Executable_Fingerprint));
  EXPECT_FALSE(has_function(&api, &PJRT_Api::PJRT_Client_Compile));  // in range, but empty
  try {
    require_function(&api, &PJRT_Api::PJRT_Executable_Fingerprint, "PJRT_Executable_Fingerprint");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), PJRT_Error_Code_UNIMPLEMENTED);
    EXPECT_TRUE(says(error.what(), {"PJRT_Executable_Fingerprint", "0.40"}));
  }
}

TEST_F(PluginTest, LoadsOnceAndKnowsItsVersion) {
  const auto plugin = Plugin::load(test_plugin_path());
  EXPECT_EQ(plugin, Plugin::load(test_plugin_path()));
  EXPECT_EQ(plugin->path(), test_plugin_path());
  EXPECT_EQ(plugin->major_version(), PJRT_API_MAJOR);
  EXPECT_GT(plugin->minor_version(), 0);
}

TEST_F(PluginTest, AnotherSpellingOfThePathIsTheSamePlugin) {
  const std::string link = ::testing::TempDir() + "linked_plugin_" + std::to_string(getpid());
  std::filesystem::create_symlink(test_plugin_path(), link);
  EXPECT_EQ(Plugin::load(test_plugin_path()), Plugin::load(link));
  std::filesystem::remove(link);
}

TEST_F(PluginTest, Identity) {
  const auto plugin = Plugin::load(test_plugin_path());
  const std::string identity = plugin->identity();
  EXPECT_EQ(identity, plugin->identity());
  EXPECT_TRUE(says(identity, {"pjrt-0." + std::to_string(plugin->minor_version()) + "-"}));
  EXPECT_GT(identity.size(), std::string("pjrt-0.100-").size());
}

}  // namespace
}  // namespace torch_tpu::pjrt
