#include "environment/environment.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <limits>
#include <stdexcept>
#include <string>

namespace torch_tpu::environment {
namespace {

constexpr const char* kVariable = "TORCH_TPU_A_VARIABLE_OF_THE_TESTS";

class Environment : public ::testing::Test {
 protected:
  void SetUp() override { unsetenv(kVariable); }
  void TearDown() override { unsetenv(kVariable); }
  static void set(const char* value) { setenv(kVariable, value, 1); }
};

template <typename F>
std::string refusal(const F& read) {
  try {
    read();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "(accepted)";
}

TEST_F(Environment, ValuesThatAreNotThere) {
  for (const char* value : {static_cast<const char*>(nullptr), ""}) {
    if (value) set(value);
    EXPECT_EQ(text(kVariable), "");
    EXPECT_TRUE(flag(kVariable, true));
    EXPECT_FALSE(flag(kVariable, false));
    EXPECT_EQ(integer(kVariable, 7, 1, 9), 7);
    EXPECT_EQ(bytes(kVariable), std::nullopt);
  }
}

TEST_F(Environment, Flags) {
  set("1");
  EXPECT_TRUE(flag(kVariable, false));
  set("0");
  EXPECT_FALSE(flag(kVariable, true));
  for (const char* bad : {"yes", "2", " 1", "true"}) {
    set(bad);
    EXPECT_EQ(refusal([] { flag(kVariable, true); }),
              std::string(kVariable) + ": expected 0 or 1, got '" + bad + "'");
  }
}

TEST_F(Environment, Integers) {
  set("9");
  EXPECT_EQ(integer(kVariable, 1, 1, 9), 9);
  set("-3");
  EXPECT_EQ(integer(kVariable, 1, -3, 9), -3);
  for (const char* bad : {"0", "10", "1.5", "1x", "x", " 1", "99999999999999999999"}) {
    set(bad);
    EXPECT_EQ(refusal([] { integer(kVariable, 1, 1, 9); }),
              std::string(kVariable) + ": expected a number from 1 to 9, got '" + bad + "'");
  }
  const auto open_end = [] { integer(kVariable, 20, 16, std::numeric_limits<int64_t>::max()); };
  set("15");
  EXPECT_NE(refusal(open_end).find("expected a number from 16 on"), std::string::npos);
}

TEST_F(Environment, Bytes) {
  const auto parsed = [](const char* value) { return parse_bytes("V", value); };
  EXPECT_EQ(parsed("0"), 0u);
  EXPECT_EQ(parsed("1000"), 1000u);
  EXPECT_EQ(parsed("1000B"), 1000u);
  EXPECT_EQ(parsed("3K"), 3072u);
  EXPECT_EQ(parsed("3k"), 3072u);
  EXPECT_EQ(parsed("3KB"), 3072u);
  EXPECT_EQ(parsed("3KiB"), 3072u);
  EXPECT_EQ(parsed("512MiB"), 512ull << 20);
  EXPECT_EQ(parsed("2.5G"), (5ull << 30) / 2);
  EXPECT_EQ(parsed("0.1K"), 102u);
  EXPECT_EQ(parsed("2TiB"), 2ull << 40);
  EXPECT_EQ(parsed("9007199254740992"), 1ull << 53);
  for (const char* bad : {"", "-1", "+1", "G", "1 G", "0x10", "1e3", "1..5K", ".", "1.5", "1P",
                          "1iB", "1KiBi", "9999999999999999999", "99999999999G", "1\n"}) {
    EXPECT_NE(refusal([&] { parsed(bad); }).find("V: expected a number of bytes"),
              std::string::npos)
        << bad;
  }
  set("5 apples");
  EXPECT_NE(refusal([] { bytes(kVariable); }).find("got '5 apples'"), std::string::npos);
}

}  // namespace
}  // namespace torch_tpu::environment
