#include "lowering/view.h"

#include <gtest/gtest.h>

namespace torch_tpu::lowering {
namespace {

TEST(DenseOrder, Contiguous) {
  EXPECT_EQ(dense_order(stablehlo::Dims{2, 3}, stablehlo::Dims{3, 1}), (stablehlo::Dims{0, 1}));
}

TEST(DenseOrder, ChannelsLast) {
  EXPECT_EQ(dense_order(stablehlo::Dims{2, 3, 4, 5}, stablehlo::Dims{60, 1, 15, 3}),
            (stablehlo::Dims{0, 2, 3, 1}));
}

TEST(DenseOrder, Gaps) {
  EXPECT_FALSE(dense_order(stablehlo::Dims{2, 3}, stablehlo::Dims{6, 2}).has_value());
}

}  // namespace
}  // namespace torch_tpu::lowering
