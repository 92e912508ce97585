// Programs that a compiler refused: the latest are kept.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <set>

#include "runtime/refused_program.h"
#include "tests/cache_test_support.h"

namespace torch_tpu::runtime {
namespace {

namespace fs = std::filesystem;

// With a temporary directory of its own.
class RefusedProgram : public cache::testing::CacheTest {
 protected:
  void SetUp() override {
    CacheTest::SetUp();
    if (const char* before = std::getenv("TMPDIR")) before_ = before;
    setenv("TMPDIR", root_.c_str(), 1);
  }
  void TearDown() override {
    before_ ? setenv("TMPDIR", before_->c_str(), 1) : unsetenv("TMPDIR");
    CacheTest::TearDown();
  }
  static std::string content(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  std::optional<std::string> before_;
};

TEST_F(RefusedProgram, TheLatestTenAreKept) {
  std::vector<std::string> paths;
  for (int i = 0; i < 13; ++i) {
    const std::optional<std::string> path = keep_refused_program("program " + std::to_string(i));
    ASSERT_TRUE(path);
    EXPECT_EQ(content(*path), "program " + std::to_string(i));
    const auto age = std::chrono::seconds(100 - i);
    fs::last_write_time(*path, fs::file_time_type::clock::now() - age);
    paths.push_back(*path);
  }
  EXPECT_EQ(std::set<std::string>(paths.begin(), paths.end()).size(), 13u);
  for (int i = 0; i < 13; ++i) EXPECT_EQ(fs::exists(paths[i]), i >= 3) << i;
}

TEST_F(RefusedProgram, OtherFilesStay) {
  for (const char* name : {"torch_tpu_failed_notes.mlir", "torch_tpu_failed_1_1.txt", "1_1.mlir"}) {
    std::ofstream(root_ / name) << "mine";
  }
  for (int i = 0; i < 12; ++i) ASSERT_TRUE(keep_refused_program("program"));
  EXPECT_EQ(std::distance(fs::directory_iterator(root_), fs::directory_iterator()), 13);
  EXPECT_TRUE(fs::exists(root_ / "torch_tpu_failed_notes.mlir"));
}

TEST_F(RefusedProgram, WhatIsInTheWayIsNotWrittenTo) {
  const std::string path = *keep_refused_program("first");
  const size_t number = path.rfind('_') + 1;
  const std::string next =
      path.substr(0, number) + std::to_string(std::stoi(path.substr(number)) + 1) + ".mlir";
  std::ofstream(root_ / "target") << "kept";
  fs::create_symlink(root_ / "target", next);
  EXPECT_NE(keep_refused_program("second"), next);
  EXPECT_EQ(content(root_ / "target"), "kept");
}

TEST_F(RefusedProgram, WithoutAFolderThereIsNoPath) {
  setenv("TMPDIR", (root_ / "missing").c_str(), 1);
  EXPECT_FALSE(keep_refused_program("program"));
}

}  // namespace
}  // namespace torch_tpu::runtime
