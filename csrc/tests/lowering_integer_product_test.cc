#include <gtest/gtest.h>

#include "lowering/integer_product.h"
#include "tests/stablehlo_test_support.h"

namespace torch_tpu::lowering {
namespace {

using namespace stablehlo;

// Values with bits in both halves, some negative, so that nothing of 64 bits can be left out.
Value numbers(Builder& b, const Dims& dims, int64_t factor) {
  const Value counted = iota(b, TensorType{ElementType::kS64, dims}, 0);
  Value mixed = counted;
  for (int64_t i = 1; i < counted.rank(); ++i) {
    mixed = add(multiply(mixed, full_like(mixed, int64_t{7})), iota(b, counted.type(), i));
  }
  return multiply(add(mixed, full_like(mixed, int64_t{-3})), full_like(mixed, factor));
}

// The CPU compiler, which has both operations, is the reference.
class IntegerProduct : public ExecutionTest {
 protected:
  void expect_dot(const Dims& lhs, const Dims& rhs, const DotDims& dims) const {
    const auto outputs = run({}, [&](Builder& b, const Values&) {
      const Value l = numbers(b, lhs, 3'000'000'019), r = numbers(b, rhs, 5'000'000'021);
      return Values{integer_dot(l, r, dims), dot_general(l, r, dims, ElementType::kS64)};
    });
    EXPECT_EQ(outputs[0].type, outputs[1].type);
    EXPECT_EQ(outputs[0].as<int64_t>(), outputs[1].as<int64_t>());
  }

  void expect_convolution(const Dims& lhs, const Dims& rhs, const ConvolutionDims& dims,
                          const ConvolutionWindow& window) const {
    const auto outputs = run({}, [&](Builder& b, const Values&) {
      const Value l = numbers(b, lhs, 3'000'000'019), r = numbers(b, rhs, 5'000'000'021);
      return Values{integer_convolution(l, r, dims, window),
                    convolution(l, r, dims, window, ElementType::kS64)};
    });
    EXPECT_EQ(outputs[0].type, outputs[1].type);
    EXPECT_EQ(outputs[0].as<int64_t>(), outputs[1].as<int64_t>());
  }
};

TEST_F(IntegerProduct, Dot) {
  expect_dot({3}, {3}, {{}, {}, {0}, {0}});
  expect_dot({2, 3}, {3, 4}, {{}, {}, {1}, {0}});
  expect_dot({3, 2}, {4, 3}, {{}, {}, {0}, {1}});
  expect_dot({2, 5, 3}, {3, 2, 4}, {{0}, {1}, {2}, {0}});
  expect_dot({2, 3, 4}, {4, 3, 5}, {{}, {}, {1, 2}, {1, 0}});
  expect_dot({2}, {3}, {{}, {}, {}, {}});
  expect_dot({2, 0}, {0, 3}, {{}, {}, {1}, {0}});
}

TEST_F(IntegerProduct, Convolution) {
  const ConvolutionDims line{.input_spatial = {2}, .kernel_spatial = {2}, .output_spatial = {2}};
  const ConvolutionDims plane{
      .input_spatial = {2, 3}, .kernel_spatial = {2, 3}, .output_spatial = {2, 3}};
  const ConvolutionDims channels_last{.input_batch = 0,
                                      .input_feature = 2,
                                      .input_spatial = {1},
                                      .kernel_output_feature = 2,
                                      .kernel_input_feature = 1,
                                      .kernel_spatial = {0},
                                      .output_batch = 1,
                                      .output_feature = 2,
                                      .output_spatial = {0}};
  expect_convolution({2, 3, 5}, {4, 3, 2}, line, {});
  expect_convolution({2, 3, 5, 6}, {4, 3, 2, 3}, plane, {});
  expect_convolution({2, 3, 5, 6}, {4, 3, 2, 3}, plane,
                     {.strides = {2, 1},
                      .padding_low = {1, 0},
                      .padding_high = {2, 1},
                      .lhs_dilation = {1, 2},
                      .rhs_dilation = {2, 1},
                      .reversal = {true, false}});
  expect_convolution({2, 6, 5}, {4, 3, 2}, line, {.feature_groups = 2});
  expect_convolution({4, 3, 5}, {6, 3, 2}, line, {.batch_groups = 2});
  expect_convolution({2, 5, 3}, {2, 3, 4}, channels_last, {});
  expect_convolution({2, 3, 5}, {4, 3, 2}, line, {.padding_low = {-1}, .padding_high = {-2}});
  expect_convolution({0, 3, 5}, {4, 3, 2}, line, {});
}

}  // namespace
}  // namespace torch_tpu::lowering
