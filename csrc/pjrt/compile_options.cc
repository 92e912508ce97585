#include "pjrt/compile_options.h"

#include <bit>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace torch_tpu::pjrt {
namespace {

// The three encodings of protobuf that these messages need.
class ProtoWriter {
 public:
  void varint_field(int number, int64_t value) {
    varint(static_cast<uint64_t>(number) << 3);
    varint(static_cast<uint64_t>(value));
  }
  void double_field(int number, double value) {
    varint(static_cast<uint64_t>(number) << 3 | 1);
    const auto bits = std::bit_cast<uint64_t>(value);
    for (int shift = 0; shift < 64; shift += 8) bytes_ += static_cast<char>(bits >> shift);
  }
  // A string or a message.
  void bytes_field(int number, std::string_view value) {
    varint(static_cast<uint64_t>(number) << 3 | 2);
    varint(value.size());
    bytes_ += value;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  void varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
  }

  std::string bytes_;
};

// Field numbers: XLA's xla/pjrt/proto/compile_options.proto.
std::string option_override(const Option& option) {
  ProtoWriter writer;
  std::visit(
      [&writer](const auto& value) {
        using Value = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<Value, std::string>) writer.bytes_field(1, value);
        if constexpr (std::is_same_v<Value, bool>) writer.varint_field(2, value);
        if constexpr (std::is_same_v<Value, int64_t>) writer.varint_field(3, value);
        if constexpr (std::is_same_v<Value, float>) writer.double_field(4, value);
      },
      option);
  return writer.bytes();
}

std::string build_options(const CompileOptions& options) {
  ProtoWriter writer;
  writer.varint_field(1, -1);  // device_ordinal: not set
  writer.varint_field(4, options.num_replicas);
  writer.varint_field(5, options.num_partitions);
  if (options.num_partitions > 1) writer.varint_field(6, true);  // use_spmd_partitioning
  return writer.bytes();
}

}  // namespace

std::string CompileOptions::serialize() const {
  ProtoWriter writer;
  writer.bytes_field(3, build_options(*this));
  if (portable) writer.varint_field(4, true);
  for (const auto& [name, value] : env_overrides) {
    ProtoWriter entry;
    entry.bytes_field(1, name);
    entry.bytes_field(2, option_override(value));
    writer.bytes_field(7, entry.bytes());
  }
  return writer.bytes();
}

}  // namespace torch_tpu::pjrt
