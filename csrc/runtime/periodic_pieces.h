// Where a list that repeats itself is divided into equal pieces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace torch_tpu::runtime {

// A piece has at least so many elements (several periods where one is shorter).
constexpr size_t kMinElements = 32;

// The ends of the pieces, of which as few elements as possible are in different ones: what comes
// before the repetitions, the equal pieces, and the rest. One piece when that would not make half
// of the elements a repetition.
std::vector<size_t> periodic_pieces(std::span<const uint64_t> elements);

}  // namespace torch_tpu::runtime
