// Hashes of sequences of words, for tables in memory. Not cryptographic.
#pragma once

#include <cstdint>

namespace torch_tpu::runtime {

// The hash of a sequence, given that of the words before its last one.
constexpr uint64_t mix(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * 0xff51afd7ed558ccdull;
  return hash ^ hash >> 32;
}

}  // namespace torch_tpu::runtime
