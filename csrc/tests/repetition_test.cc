#include "runtime/repetition.h"

#include <gtest/gtest.h>

namespace torch_tpu::runtime {
namespace {

// The positions after which a cut is due.
std::vector<size_t> cuts(RepetitionDetector& detector, const std::vector<uint64_t>& stream) {
  std::vector<size_t> out;
  for (size_t i = 0; i < stream.size(); ++i) {
    if (detector.add(stream[i])) out.push_back(i + 1);
  }
  return out;
}

// `head` operations, `times` blocks of `period`, `tail` operations; all others are different.
std::vector<uint64_t> blocks(size_t head, size_t period, size_t times, size_t tail,
                             uint64_t base = 0) {
  std::vector<uint64_t> stream;
  for (size_t i = 0; i < head; ++i) stream.push_back(base + 1'000'000 + i);
  for (size_t t = 0; t < times; ++t) {
    for (size_t i = 0; i < period; ++i) stream.push_back(base + i);
  }
  for (size_t i = 0; i < tail; ++i) stream.push_back(base + 2'000'000 + i);
  return stream;
}

TEST(Repetition, CutsAtThePeriod) {
  RepetitionDetector d;
  const std::vector<size_t> at = cuts(d, blocks(10, 40, 6, 25));
  EXPECT_EQ(at, (std::vector<size_t>{90, 130, 170, 210, 250}));
}

TEST(Repetition, LongPeriods) {
  RepetitionDetector d;
  EXPECT_EQ(cuts(d, blocks(3, 5000, 3, 7)), (std::vector<size_t>{10003, 15003}));
}

TEST(Repetition, ShortPeriodsAreTakenTogether) {
  RepetitionDetector d;
  const std::vector<size_t> at = cuts(d, blocks(0, 3, 40, 0));
  ASSERT_GE(at.size(), 4u);
  for (size_t i = 1; i < at.size(); ++i) EXPECT_EQ(at[i] - at[i - 1], 18u);
}

TEST(Repetition, NothingRepeats) {
  RepetitionDetector d;
  EXPECT_TRUE(cuts(d, blocks(3000, 1, 1, 0)).empty());
}

TEST(Repetition, StepsOfATrainingLoopAreCutAlike) {
  RepetitionDetector d;
  std::vector<uint64_t> step = blocks(20, 30, 5, 10);
  const std::vector<uint64_t> backward = blocks(4, 50, 5, 9, 10'000'000);
  step.insert(step.end(), backward.begin(), backward.end());
  const std::vector<size_t> first = cuts(d, step);
  EXPECT_EQ(first.size(), 8u);
  EXPECT_EQ(cuts(d, step), first);
  EXPECT_EQ(cuts(d, step), first);
}

TEST(Repetition, Reset) {
  RepetitionDetector d;
  const std::vector<uint64_t> stream = blocks(5, 40, 1, 0);
  cuts(d, stream);
  d.reset();
  EXPECT_TRUE(cuts(d, stream).empty());
}

}  // namespace
}  // namespace torch_tpu::runtime
