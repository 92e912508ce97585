#include "runtime/periodic_pieces.h"

#include <gtest/gtest.h>

namespace torch_tpu::runtime {
namespace {

using Ends = std::vector<size_t>;

// `head` elements, `times` repetitions of `period`, `tail` elements; all others are different.
std::vector<uint64_t> list(size_t head, size_t period, size_t times, size_t tail) {
  std::vector<uint64_t> out;
  for (size_t i = 0; i < head; ++i) out.push_back(1'000 + i);
  for (size_t i = 0; i < period * times; ++i) out.push_back(i % period);
  for (size_t i = 0; i < tail; ++i) out.push_back(2'000 + i);
  return out;
}

TEST(PeriodicPieces, LayersBetweenOthers) {
  EXPECT_EQ(periodic_pieces(list(2, 40, 4, 3)), (Ends{2, 42, 82, 122, 162, 165}));
}

TEST(PeriodicPieces, ShortPeriodsAreTakenTogether) {
  EXPECT_EQ(periodic_pieces(list(0, 12, 9, 0)), (Ends{36, 72, 108}));
  EXPECT_EQ(periodic_pieces(list(0, 1, 128, 0)), (Ends{32, 64, 96, 128}));
}

TEST(PeriodicPieces, WhatIsLeftOverIsAPiece) {
  EXPECT_EQ(periodic_pieces(list(1, 12, 10, 3)), (Ends{1, 37, 73, 109, 124}));
  // A repetition that begins in the middle of one.
  std::vector<uint64_t> shifted = list(0, 40, 4, 0);
  shifted.insert(shifted.begin(), {38, 39});
  EXPECT_EQ(periodic_pieces(shifted), (Ends{40, 80, 120, 160, 162}));
}

TEST(PeriodicPieces, NothingToGain) {
  EXPECT_EQ(periodic_pieces(list(200, 1, 1, 0)), (Ends{201}));
  EXPECT_EQ(periodic_pieces(list(100, 40, 2, 100)), (Ends{280}));
  EXPECT_EQ(periodic_pieces(list(0, 20, 2, 0)), (Ends{40}));
  EXPECT_EQ(periodic_pieces({}), (Ends{0}));
}

}  // namespace
}  // namespace torch_tpu::runtime
