#include "stablehlo/attributes.h"

#include <charconv>

namespace torch_tpu::stablehlo {

void append_integer(std::string& out, int64_t value) {
  char buffer[24];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value);
  out.append(buffer, end.ptr);
}

std::string dense_array(std::span<const int64_t> values) {
  std::string out = "array<i64";
  for (size_t i = 0; i < values.size(); ++i) {
    out += i == 0 ? ": " : ", ";
    append_integer(out, values[i]);
  }
  return out + ">";
}

std::string dense_array(const std::vector<bool>& values) {
  std::string out = "array<i1";
  for (size_t i = 0; i < values.size(); ++i) {
    out += i == 0 ? ": " : ", ";
    out += boolean(values[i]);
  }
  return out + ">";
}

std::string i64(int64_t value) {
  std::string out;
  append_integer(out, value);
  return out + " : i64";
}

std::string_view boolean(bool value) { return value ? "true" : "false"; }

std::string padding_pairs(std::span<const int64_t> low, std::span<const int64_t> high) {
  std::string out = "dense<";
  if (!low.empty()) {
    out += '[';
    for (size_t i = 0; i < low.size(); ++i) {
      out += i == 0 ? "[" : ", [";
      append_integer(out, low[i]);
      out += ", ";
      append_integer(out, high[i]);
      out += ']';
    }
    out += ']';
  }
  out += "> : tensor<";
  append_integer(out, static_cast<int64_t>(low.size()));
  return out + "x2xi64>";
}

std::string quoted(std::string_view text) {
  constexpr char kHex[] = "0123456789ABCDEF";
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\' || byte < 0x20 || byte >= 0x7F) {
      out += '\\';
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    } else {
      out += c;
    }
  }
  return out + "\"";
}

}  // namespace torch_tpu::stablehlo
