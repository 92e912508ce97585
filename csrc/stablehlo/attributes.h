// The textual form of the attributes that several operations share.
#pragma once

#include <vector>

#include "stablehlo/types.h"

namespace torch_tpu::stablehlo {

void append_integer(std::string& out, int64_t value);
// array<i64: 1, 2>
std::string dense_array(std::span<const int64_t> values);
// array<i1: true, false>
std::string dense_array(const std::vector<bool>& values);
// 3 : i64
std::string i64(int64_t value);
std::string_view boolean(bool value);
// dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>, one row per dimension
std::string padding_pairs(std::span<const int64_t> low, std::span<const int64_t> high);
// "text" with the escapes of MLIR
std::string quoted(std::string_view text);

}  // namespace torch_tpu::stablehlo
