// Reductions, windows, sorting and linear algebra, run on the plugin.
#include "stablehlo_test_support.h"

namespace torch_tpu::stablehlo {
namespace {

class StablehloReduction : public ExecutionTest {};
class StablehloLinearAlgebra : public ExecutionTest {};
using Complex = std::complex<float>;

Values plus(const Values& v) { return {add(v[0], v[1])}; }

TEST_F(StablehloReduction, NamedReductions) {
  const auto outputs =
      run({tensor({1.0f, 2.0f, 3.0f, 4.0f, 5.0f, 6.0f}, {2, 3}), tensor({6, 3, 12, 5}, {2, 2}),
           tensor({true, false, true, true}, {2, 2})},
          [](Builder&, const Values& v) {
            return Values{reduce_sum(v[0], {1}), reduce_prod(v[0], {0}),   reduce_max(v[0], {0, 1}),
                          reduce_min(v[0], {1}), reduce_and(v[1], {1}),    reduce_or(v[1], {1}),
                          reduce_and(v[2], {1}), reduce_or(v[2], {0}),     reduce_sum(v[0], {}),
                          reduce_max(v[2], {1}), reduce_sum(v[1], {0, 1}), reduce_max(v[1], {0})};
          });
  EXPECT_TRUE(is<float>(outputs[0], {6, 15}));
  EXPECT_TRUE(is<float>(outputs[1], {4, 10, 18}));
  EXPECT_TRUE(is<float>(outputs[2], {6}));
  EXPECT_TRUE(is<float>(outputs[3], {1, 4}));
  EXPECT_TRUE(is(outputs[4], {2, 4}));
  EXPECT_TRUE(is(outputs[5], {7, 13}));
  EXPECT_TRUE(is(outputs[6], {false, true}));
  EXPECT_TRUE(is(outputs[7], {true, true}));
  EXPECT_TRUE(is<float>(outputs[8], {1, 2, 3, 4, 5, 6}));
  EXPECT_TRUE(is(outputs[9], {true, true}));
  EXPECT_TRUE(is(outputs[10], {26}));
  EXPECT_TRUE(is(outputs[11], {12, 5}));
}

TEST_F(StablehloReduction, NanWinsAndEmptyGivesTheNeutralElement) {
  const auto outputs =
      run({tensor({1.0f, kNan, 3.0f}), tensor<float>({}, {0})}, [](Builder&, const Values& v) {
        return Values{reduce_max(v[0], {0}), reduce_min(v[0], {0}), reduce_max(v[1], {0}),
                      reduce_prod(v[1], {0})};
      });
  EXPECT_TRUE(is(outputs[0], {kNan}));
  EXPECT_TRUE(is(outputs[1], {kNan}));
  EXPECT_TRUE(is(outputs[2], {-kInf}));
  EXPECT_TRUE(is(outputs[3], {1.0f}));
}

TEST_F(StablehloReduction, SeveralOperands) {
  // argmax: (value, index) pairs; the first of equal values wins.
  const auto outputs =
      run({tensor({2.0f, 7.0f, 7.0f, 1.0f, 0.0f, 3.0f}, {2, 3})}, [](Builder& b, const Values& v) {
        const Value index = iota(b, {ElementType::kS32, {2, 3}}, 1);
        return reduce(
            {v[0], index}, {lowest(b, {ElementType::kF32, {}}), scalar(b, ElementType::kS32, 0)},
            {1}, [](const Values& a) {
              const Value better = or_(gt(a[2], a[0]), and_(eq(a[2], a[0]), lt(a[3], a[1])));
              return Values{select(better, a[2], a[0]), select(better, a[3], a[1])};
            });
      });
  EXPECT_TRUE(is<float>(outputs[0], {7, 3}));
  EXPECT_TRUE(is(outputs[1], {1, 2}));
}

TEST_F(StablehloReduction, Windows) {
  const auto outputs =
      run({tensor({1.0f, 2.0f, 3.0f, 4.0f, 5.0f})}, [](Builder& b, const Values& v) {
        const Value zero = scalar(b, ElementType::kF32, 0);
        return Values{
            reduce_window({v[0]}, {zero}, {.dimensions = {2}, .strides = {2}}, plus)[0],
            // A running sum.
            reduce_window({v[0]}, {zero}, {.dimensions = {5}, .padding_low = {4}}, plus)[0],
            reduce_window({v[0]}, {zero}, {.dimensions = {2}, .window_dilations = {3}}, plus)[0],
            reduce_window({v[0]}, {zero}, {.dimensions = {2}, .base_dilations = {2}}, plus)[0]};
      });
  EXPECT_TRUE(is<float>(outputs[0], {3, 7}));
  EXPECT_TRUE(is<float>(outputs[1], {1, 3, 6, 10, 15}));
  EXPECT_TRUE(is<float>(outputs[2], {5, 7}));
  EXPECT_TRUE(is<float>(outputs[3], {1, 2, 2, 3, 3, 4, 4, 5}));
}

TEST_F(StablehloReduction, SelectAndScatter) {
  const auto out =
      run1({tensor({1.0f, 5.0f, 2.0f, 3.0f}), tensor({10.0f, 20.0f})}, [](const Values& v) {
        return select_and_scatter(
            v[0], v[1], scalar(v[0].builder(), ElementType::kF32, 0),
            {.dimensions = {2}, .strides = {2}},
            [](const Values& a) { return Values{ge(a[0], a[1])}; }, plus);
      });
  EXPECT_TRUE(is<float>(out, {0, 10, 0, 20}));
}

TEST_F(StablehloReduction, Sort) {
  const auto outputs =
      run({tensor({3, 1, 2, 1}), tensor({0, 1, 2, 3})}, [](Builder&, const Values& v) {
        return sort(v, 0, true, [](const Values& a) { return Values{lt(a[0], a[1])}; });
      });
  EXPECT_TRUE(is(outputs[0], {1, 1, 2, 3}));
  EXPECT_TRUE(is(outputs[1], {1, 3, 2, 0}));
}

TEST_F(StablehloReduction, BodiesMayMakeConstants) {
  // Only constants: a reduction's body cannot use values of the program around it.
  const auto out = run1({tensor({1.0f, 2.0f})}, [](const Values& v) {
    return reduce({v[0]}, {scalar(v[0].builder(), ElementType::kF32, 0)}, {0}, [](const Values& a) {
      return Values{add(a[0], multiply(a[1], full_like(a[1], 3.0)))};
    })[0];
  });
  EXPECT_TRUE(is<float>(out, {9}));
}

TEST_F(StablehloLinearAlgebra, DotGeneral) {
  const auto outputs =
      run({tensor({1.0f, 2.0f, 3.0f, 4.0f}, {2, 2}), tensor({1.0f, 0.0f, 2.0f, 1.0f}, {2, 2}),
           tensor({1, 2, 3})},
          [](Builder&, const Values& v) {
            const Value bf16 = convert(v[0], ElementType::kBF16);
            return Values{dot_general(v[0], v[1], {.lhs_contracting = {1}, .rhs_contracting = {0}},
                                      ElementType::kF32),
                          dot_general(v[0], v[1],
                                      {.lhs_batching = {0},
                                       .rhs_batching = {0},
                                       .lhs_contracting = {1},
                                       .rhs_contracting = {1}},
                                      ElementType::kF32, Precision::kHigh),
                          dot_general(v[2], v[2], {.lhs_contracting = {0}, .rhs_contracting = {0}},
                                      ElementType::kS32),
                          dot_general(bf16, bf16, {.lhs_contracting = {1}, .rhs_contracting = {0}},
                                      ElementType::kF32, Precision::kDefault),
                          dot_general(v[2], v[2], {.lhs_contracting = {}, .rhs_contracting = {}},
                                      ElementType::kS32)};
          });
  EXPECT_TRUE(is<float>(outputs[0], {5, 2, 11, 4}));
  EXPECT_TRUE(is<float>(outputs[1], {1, 10}));
  EXPECT_TRUE(is(outputs[2], {14}));
  EXPECT_TRUE(is<float>(outputs[3], {7, 10, 15, 22}));
  EXPECT_TRUE(is(outputs[4], {1, 2, 3, 2, 4, 6, 3, 6, 9}));
}

TEST_F(StablehloLinearAlgebra, Convolution) {
  const ConvolutionDims line{.input_spatial = {2}, .kernel_spatial = {2}, .output_spatial = {2}};
  const ConvolutionDims channels_last{.input_batch = 0,
                                      .input_feature = 2,
                                      .input_spatial = {1},
                                      .kernel_output_feature = 2,
                                      .kernel_input_feature = 1,
                                      .kernel_spatial = {0},
                                      .output_batch = 0,
                                      .output_feature = 2,
                                      .output_spatial = {1}};
  const auto outputs =
      run({tensor({1.0f, 2.0f, 3.0f, 4.0f}, {1, 1, 4}), tensor({1.0f, 10.0f}, {1, 1, 2}),
           tensor({1.0f, 2.0f, 3.0f, 4.0f}, {1, 2, 2}), tensor({1.0f, 10.0f}, {2, 1, 1}),
           tensor({1.0f, 2.0f, 3.0f, 4.0f}, {2, 1, 2})},
          [&](Builder&, const Values& v) {
            return Values{convolution(v[0], v[1], line, {}, ElementType::kF32),
                          convolution(v[0], v[1], line,
                                      {.strides = {2}, .padding_low = {1}, .padding_high = {1}},
                                      ElementType::kF32),
                          convolution(v[0], v[1], line, {.lhs_dilation = {2}, .rhs_dilation = {2}},
                                      ElementType::kF32),
                          convolution(v[0], v[1], line, {.reversal = {true}}, ElementType::kF32),
                          convolution(v[2], v[3], line, {.feature_groups = 2}, ElementType::kF32),
                          convolution(reshape(v[0], {1, 4, 1}), reshape(v[1], {2, 1, 1}),
                                      channels_last, {}, ElementType::kF32)};
          });
  EXPECT_TRUE(is<float>(outputs[0], {21, 32, 43}));
  EXPECT_TRUE(is<float>(outputs[1], {10, 32, 4}));
  EXPECT_TRUE(is<float>(outputs[2], {21, 0, 32, 0, 43}));
  EXPECT_TRUE(is<float>(outputs[3], {12, 23, 34}));
  EXPECT_TRUE(is<float>(outputs[4], {1, 2, 30, 40}));
  EXPECT_EQ(outputs[5].type.dims, (Dims{1, 3, 1}));
  EXPECT_TRUE(is<float>(outputs[5], {21, 32, 43}));
}

TEST_F(StablehloLinearAlgebra, ConvolutionInTwoDimensionsAndBatchGroups) {
  const ConvolutionDims plane{
      .input_spatial = {2, 3}, .kernel_spatial = {2, 3}, .output_spatial = {2, 3}};
  const ConvolutionDims line{.input_spatial = {2}, .kernel_spatial = {2}, .output_spatial = {2}};
  const auto outputs =
      run({tensor({1.0f, 2.0f, 3.0f, 4.0f, 5.0f, 6.0f}, {1, 1, 2, 3}),
           tensor({1.0f, 10.0f, 100.0f, 1000.0f}, {1, 1, 2, 2}),
           tensor({1.0f, 2.0f, 3.0f, 4.0f}, {2, 1, 2}), tensor({1.0f, 10.0f}, {2, 1, 1})},
          [&](Builder&, const Values& v) {
            return Values{convolution(v[0], v[1], plane, {}, ElementType::kF32),
                          convolution(v[2], v[3], line, {.batch_groups = 2}, ElementType::kF32)};
          });
  EXPECT_TRUE(is<float>(outputs[0], {5421, 6532}));
  EXPECT_EQ(outputs[1].type.dims, (Dims{1, 2, 2}));
  EXPECT_TRUE(is<float>(outputs[1], {1, 2, 30, 40}));
}

TEST_F(StablehloLinearAlgebra, Fft) {
  const auto outputs = run({tensor({1.0f, 2.0f, 3.0f, 4.0f})}, [](Builder&, const Values& v) {
    const Value half = fft(v[0], FftType::kRfft, {4});
    const Value full = fft(convert(v[0], ElementType::kC64), FftType::kFft, {4});
    return Values{half, fft(half, FftType::kIrfft, {4}), real(full),
                  real(fft(full, FftType::kIfft, {4}))};
  });
  EXPECT_TRUE(
      is_near(HostTensor{{ElementType::kF32, {6}}, outputs[0].bytes}, {10, 0, -2, 2, -2, 0}));
  EXPECT_TRUE(is_near(outputs[1], {1, 2, 3, 4}));
  EXPECT_TRUE(is_near(outputs[2], {10, -2, -2, -2}));
  EXPECT_TRUE(is_near(outputs[3], {1, 2, 3, 4}));
}

TEST_F(StablehloLinearAlgebra, CholeskyAndTriangularSolve) {
  const auto outputs =
      run({tensor({4.0f, 2.0f, 2.0f, 10.0f}, {2, 2}), tensor({2.0f, 0.0f, 1.0f, 3.0f}, {2, 2}),
           tensor({4.0f, 8.0f}, {2, 1})},
          [](Builder& b, const Values& v) {
            // Above the diagonal the result of cholesky(lower) is undefined: mask it.
            const TensorType index{ElementType::kS32, {2, 2}};
            const Value keep = ge(iota(b, index, 0), iota(b, index, 1));
            const auto solve = [&](bool left, bool unit, Transpose transpose, Value rhs) {
              return triangular_solve(v[1], rhs, left, true, unit, transpose);
            };
            return Values{select(keep, cholesky(v[0], true), full_like(v[0], 0)),
                          solve(true, false, Transpose::kNone, v[2]),
                          solve(true, true, Transpose::kNone, v[2]),
                          solve(true, false, Transpose::kTranspose, v[2]),
                          solve(true, false, Transpose::kAdjoint, v[2]),
                          solve(false, false, Transpose::kNone, reshape(v[2], {1, 2}))};
          });
  EXPECT_TRUE(is_near(outputs[0], {2, 0, 1, 3}));
  EXPECT_TRUE(is_near(outputs[1], {2, 2}));
  EXPECT_TRUE(is_near(outputs[2], {4, 4}));
  EXPECT_TRUE(is_near(outputs[3], {2.0 / 3, 8.0 / 3}));
  EXPECT_TRUE(is_near(outputs[4], {2.0 / 3, 8.0 / 3}));
  EXPECT_TRUE(is_near(outputs[5], {2.0 / 3, 8.0 / 3}));
}

}  // namespace
}  // namespace torch_tpu::stablehlo
