#include <gtest/gtest.h>

#include "pjrt/compile_options.h"

namespace torch_tpu::pjrt {
namespace {

// The proto bytes of "not set": field 1, varint -1.
const std::string kNoOrdinal = "\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01";

TEST(CompileOptions, OnePortableProgram) {
  EXPECT_EQ(CompileOptions{}.serialize(), "\x1a\x0f" + kNoOrdinal + "\x20\x01\x28\x01\x20\x01");
}

TEST(CompileOptions, Partitioned) {
  const CompileOptions options{
      .num_replicas = 2, .num_partitions = 300, .portable = false, .env_overrides = {}};
  EXPECT_EQ(options.serialize(), "\x1a\x12" + kNoOrdinal + "\x20\x02\x28\xac\x02\x30\x01");
}

TEST(CompileOptions, Overrides) {
  CompileOptions options;
  const std::string base = options.serialize();
  const auto only = [&](const Option& value) {
    options.env_overrides = {{"f", value}};
    return options.serialize().substr(base.size());
  };
  using namespace std::string_literals;
  EXPECT_EQ(only("xy"s), "\x3a\x09\x0a\x01\x66\x12\x04\x0a\x02xy"s);
  EXPECT_EQ(only(false), "\x3a\x07\x0a\x01\x66\x12\x02\x10\x00"s);
  EXPECT_EQ(only(int64_t{5}), "\x3a\x07\x0a\x01\x66\x12\x02\x18\x05"s);
  EXPECT_EQ(only(1.0f), "\x3a\x0e\x0a\x01\x66\x12\x09\x21\x00\x00\x00\x00\x00\x00\xf0\x3f"s);
}

}  // namespace
}  // namespace torch_tpu::pjrt
