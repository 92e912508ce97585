#include "lowering/byte_resampling.h"

#include <algorithm>
#include <cmath>

#include "lowering/expression.h"

namespace torch_tpu::lowering {

namespace sh = stablehlo;

namespace {

// Weights of one output that belong to the same input count as one.
Taps merged(Taps taps) {
  for (int64_t o = 0; o < taps.outputs(); ++o) {
    for (size_t k = 0; k < taps.indices.size(); ++k) {
      for (size_t first = 0; first < k; ++first) {
        if (taps.indices[first][o] != taps.indices[k][o]) continue;
        taps.weights[first][o] += taps.weights[k][o];
        taps.weights[k][o] = 0;
        break;
      }
    }
  }
  return taps;
}

// Binary digits after the point: the most with which the largest weight fits in 16 bits.
int fixed_point_digits(const Taps& taps) {
  constexpr int kMost = 22;
  double largest = 0;
  for (const auto& line : taps.weights) {
    for (const double weight : line) largest = std::max(largest, weight);
  }
  int digits = 0;
  while (digits < kMost && 0.5 + std::ldexp(largest, digits + 1) < 32768) ++digits;
  return digits;
}

}  // namespace

Value mix_bytes_along(Value x, int64_t dim, const Taps& taps) {
  Taps fixed = merged(taps);
  const int digits = fixed_point_digits(fixed);
  for (auto& line : fixed.weights) {
    for (double& weight : line) weight = std::round(std::ldexp(weight, digits));
  }
  const Value sum = mix_along(sh::convert(x, ElementType::kS32), dim, fixed);
  const Value rounded = sh::shift_right_arithmetic(sum + std::ldexp(0.5, digits),
                                                   sh::full_like(sum, int64_t{digits}));
  const Value bounded =
      sh::minimum(sh::maximum(rounded, constant_like(sum, 0)), constant_like(sum, 255));
  return sh::convert(bounded, ElementType::kU8);
}

}  // namespace torch_tpu::lowering
