#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "pjrt/discovery.h"
#include "pjrt/error.h"
#include "tests/pjrt_test_support.h"

namespace torch_tpu::pjrt {
namespace {

namespace fs = std::filesystem;

// A machine made of files.
class Discovery : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(::testing::TempDir()) / ("discovery_" + std::to_string(getpid()));
    fs::create_directories(root_ / "dev");
    fs::create_directories(root_ / "sys/bus/pci/devices");
    search_.sys_root = root_ / "sys";
    search_.dev_root = root_ / "dev";
    unsetenv("TORCH_TPU_PJRT_PLUGIN");
  }
  void TearDown() override {
    unsetenv("TORCH_TPU_PJRT_PLUGIN");
    fs::remove_all(root_);
  }

  std::string file(const std::string& name, const std::string& text = "") const {
    const fs::path path = root_ / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
    return path;
  }

  void add_pci(const std::string& slot, const std::string& vendor, const std::string& kind) const {
    file("sys/bus/pci/devices/" + slot + "/vendor", vendor + "\n");
    file("sys/bus/pci/devices/" + slot + "/class", kind + "\n");
  }

  std::string error() const {
    try {
      choose_plugin(search_);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), PJRT_Error_Code_NOT_FOUND);
      return error.what();
    }
    ADD_FAILURE() << "a plugin was chosen";
    return "";
  }

  fs::path root_;
  PluginSearch search_;
};

TEST_F(Discovery, VariableBeatsEverything) {
  add_pci("0", "0x1ae0", "0xff0000");
  search_.libtpu = {file("libtpu.so")};
  search_.cpu = {file("cpu.so")};
  const std::string mine = file("mine.so");
  setenv("TORCH_TPU_PJRT_PLUGIN", mine.c_str(), 1);
  const PluginChoice choice = choose_plugin(search_);
  EXPECT_EQ(choice.path, mine);
  EXPECT_EQ(choice.source, "TORCH_TPU_PJRT_PLUGIN");
}

TEST_F(Discovery, WrongVariableIsAnErrorNotAFallThrough) {
  search_.cpu = {file("cpu.so")};
  setenv("TORCH_TPU_PJRT_PLUGIN", "/no/such/plugin.so", 1);
  EXPECT_TRUE(says(error(), {"TORCH_TPU_PJRT_PLUGIN", "/no/such/plugin.so", "unset it"}));
}

TEST_F(Discovery, LibtpuWhenATpuIsAttached) {
  search_.libtpu = {"/no/such/libtpu.so", file("libtpu.so")};
  search_.cpu = {file("cpu.so")};
  EXPECT_EQ(choose_plugin(search_).source, "cpu");
  add_pci("0", "0x1ae0", "0xff0000");
  const PluginChoice choice = choose_plugin(search_);
  EXPECT_EQ(choice.path, search_.libtpu[1]);
  EXPECT_EQ(choice.source, "libtpu");
}

TEST_F(Discovery, TpuWithoutLibtpu) {
  add_pci("0", "0x1ae0", "0xff0000");
  search_.libtpu = {"/no/such/libtpu.so"};
  search_.cpu = {file("cpu.so")};
  EXPECT_TRUE(says(error(), {"/no/such/libtpu.so", "install", "TORCH_TPU_PJRT_PLUGIN"}));
}

TEST_F(Discovery, HardwareThatIsNotATpu) {
  EXPECT_FALSE(tpu_hardware_present(search_));
  add_pci("network", "0x1ae0", "0x020000");
  add_pci("disk", "0x1ae0", "0x010802");
  add_pci("other_vendor", "0x10de", "0x030200");
  file("dev/accel/accel0");
  file("dev/acceleration");
  file("dev/vfio/0");
  EXPECT_FALSE(tpu_hardware_present(search_));
}

TEST_F(Discovery, TpuDeviceNode) {
  file("dev/accel0");
  EXPECT_TRUE(tpu_hardware_present(search_));
}

TEST_F(Discovery, MachineWithoutThoseFolders) {
  search_.sys_root = "/no/such/sys";
  search_.dev_root = "/no/such/dev";
  EXPECT_FALSE(tpu_hardware_present(search_));
}

TEST_F(Discovery, FirstCpuPluginThatExists) {
  search_.cpu = {"/no/such/newest.so", file("newer.so"), file("older.so")};
  EXPECT_EQ(choose_plugin(search_).path, search_.cpu[1]);
}

TEST_F(Discovery, NoPluginAtAll) {
  search_.cpu = {"/no/such/first.so", "/no/such/second.so"};
  EXPECT_TRUE(says(
      error(), {"/no/such/first.so", "/no/such/second.so", "install", "TORCH_TPU_PJRT_PLUGIN"}));
  search_.cpu = {};
  EXPECT_TRUE(says(error(), {"none"}));
}

TEST_F(Discovery, BrokenPluginSaysHowItWasChosen) {
  const auto message = [](const PluginChoice& choice) -> std::string {
    try {
      load_plugin(choice);
    } catch (const Error& error) {
      return error.what();
    }
    return "loaded";
  };
  const std::string broken = file("broken.so", "text");
  EXPECT_TRUE(says(message({broken, "cpu"}),
                   {broken, "cannot load it", "reinstall", "TORCH_TPU_PJRT_PLUGIN"}));
  EXPECT_TRUE(says(message({broken, "TORCH_TPU_PJRT_PLUGIN"}),
                   {"chosen by TORCH_TPU_PJRT_PLUGIN", "unset it"}));
}

}  // namespace
}  // namespace torch_tpu::pjrt
