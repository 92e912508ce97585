#include "environment/environment.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <stdexcept>

namespace torch_tpu::environment {

namespace {

struct Unit {
  std::string_view suffix;
  uint64_t bytes;
};

constexpr std::array<Unit, 6> kUnits = {{{"", 1},
                                         {"B", 1},
                                         {"K", 1ull << 10},
                                         {"M", 1ull << 20},
                                         {"G", 1ull << 30},
                                         {"T", 1ull << 40}}};

// 0: no such unit. "KB" and "KiB" are what "K" is, as PyTorch and the kernel count.
uint64_t bytes_of_unit(std::string suffix) {
  if (!suffix.empty()) suffix[0] = static_cast<char>(std::toupper(suffix[0]));
  if (suffix.size() > 1 && suffix.back() == 'B') {
    suffix.pop_back();
    if (suffix.size() > 1 && suffix.back() == 'i') suffix.pop_back();
  }
  for (const Unit& unit : kUnits) {
    if (unit.suffix == suffix) return unit.bytes;
  }
  return 0;
}

}  // namespace

void refuse(std::string_view variable, std::string_view expected, std::string_view got) {
  throw std::invalid_argument(std::string(variable) + ": expected " + std::string(expected) +
                              ", got '" + std::string(got) + "'");
}

std::string text(const char* variable) {
  const char* const value = std::getenv(variable);
  return value ? value : "";
}

bool flag(const char* variable, bool otherwise) {
  const std::string value = text(variable);
  if (value.empty()) return otherwise;
  if (value != "0" && value != "1") refuse(variable, "0 or 1", value);
  return value == "1";
}

int64_t integer(const char* variable, int64_t otherwise, int64_t least, int64_t most) {
  const std::string value = text(variable);
  if (value.empty()) return otherwise;
  int64_t number = 0;
  const char* const end = value.data() + value.size();
  const auto [stop, error] = std::from_chars(value.data(), end, number);
  if (error != std::errc() || stop != end || number < least || number > most) {
    std::string expected = "a number from " + std::to_string(least);
    expected += most == std::numeric_limits<int64_t>::max() ? " on" : " to " + std::to_string(most);
    refuse(variable, expected, value);
  }
  return number;
}

uint64_t parse_bytes(const std::string& name, const std::string& text) {
  const size_t digits = std::min(text.find_first_not_of("0123456789."), text.size());
  const uint64_t unit = bytes_of_unit(text.substr(digits));
  double number = 0;
  const char* const end = text.data() + digits;
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  // Doubles hold whole numbers up to 2^53: enough bytes for any machine.
  const double total = number * static_cast<double>(unit);
  if (unit == 0 || digits == 0 || error != std::errc() || stop != end || total > 0x1p53 ||
      (unit == 1 && std::floor(number) != number)) {
    refuse(name, "a number of bytes, such as 1000000, 512MiB or 2.5G", text);
  }
  return static_cast<uint64_t>(total);
}

std::optional<uint64_t> bytes(const char* variable) {
  const std::string value = text(variable);
  if (value.empty()) return std::nullopt;
  return parse_bytes(variable, value);
}

}  // namespace torch_tpu::environment
