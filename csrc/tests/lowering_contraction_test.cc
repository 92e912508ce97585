// At which precision products are written.
#include <gtest/gtest.h>

#include "lowering/contraction.h"

namespace torch_tpu::lowering {
namespace {

using stablehlo::Precision;

const stablehlo::DotDims kDims{.lhs_contracting = {1}, .rhs_contracting = {0}};

size_t count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

struct Written {
  std::string text;
  bool asked = false;  // whether the program depends on the precision
};

template <typename Multiply>
Written written(ElementType type, stablehlo::Float32Products products, Multiply multiply) {
  Builder b;
  b.set_float32_products(products);
  const Value lhs = b.parameter({type, {2, 3}}), rhs = b.parameter({type, {3, 4}});
  const Value out = multiply(lhs, rhs);
  return {b.finish({out}), b.float32_products_asked()};
}

Written dot_of(ElementType type, stablehlo::Float32Products products) {
  return written(type, products, [](Value l, Value r) { return dot(l, r, kDims); });
}

TEST(Contraction, NamesTheLevelOfFloat32) {
  for (const ElementType type : {ElementType::kF32, ElementType::kC64}) {
    const Written medium = dot_of(type, {Precision::kDefault});
    EXPECT_EQ(count(medium.text, "precision_config"), 0u);
    EXPECT_EQ(count(dot_of(type, {Precision::kHigh}).text, "precision HIGH>"), 2u);
    EXPECT_EQ(count(dot_of(type, {Precision::kHighest}).text, "precision HIGHEST>"), 2u);
    EXPECT_EQ(count(medium.text, "reduce_precision"), 0u);
    EXPECT_TRUE(medium.asked);
  }
}

TEST(Contraction, EmulatesTheLevelOfFloat32) {
  const Written medium = dot_of(ElementType::kF32, {Precision::kDefault, true});
  EXPECT_EQ(count(medium.text, "\"stablehlo.dot_general\""), 1u);
  EXPECT_EQ(count(medium.text, "\"stablehlo.reduce_precision\""), 2u);
  const Written high = dot_of(ElementType::kF32, {Precision::kHigh, true});
  EXPECT_EQ(count(high.text, "\"stablehlo.dot_general\""), 3u);
  EXPECT_EQ(count(high.text, "\"stablehlo.reduce_precision\""), 4u);
  const Written highest = dot_of(ElementType::kF32, {Precision::kHighest, true});
  EXPECT_EQ(count(highest.text, "\"stablehlo.dot_general\""), 1u);
  EXPECT_EQ(count(highest.text, "\"stablehlo.reduce_precision\""), 0u);
}

TEST(Contraction, OtherTypesHaveNoLevel) {
  for (const ElementType type : {ElementType::kF64, ElementType::kC128, ElementType::kBF16,
                                 ElementType::kF16, ElementType::kS32}) {
    const Written medium = dot_of(type, {Precision::kDefault, true});
    EXPECT_EQ(medium.text, dot_of(type, {Precision::kHighest, false}).text);
    EXPECT_FALSE(medium.asked);
  }
}

TEST(Contraction, ExactProductsHaveNoLevel) {
  const Written medium = written(ElementType::kF32, {Precision::kDefault, true},
                                 [](Value l, Value r) { return exact_dot(l, r, kDims); });
  EXPECT_EQ(count(medium.text, "precision HIGHEST>"), 2u);
  EXPECT_EQ(count(medium.text, "reduce_precision"), 0u);
  EXPECT_FALSE(medium.asked);
}

TEST(Contraction, ConvolutionsAreDots) {
  Builder b;
  b.set_float32_products({Precision::kHigh, true});
  const Value x = b.parameter({ElementType::kF32, {1, 2, 5}});
  const Value w = b.parameter({ElementType::kF32, {3, 2, 3}});
  const stablehlo::ConvolutionDims dims{
      .input_spatial = {2}, .kernel_spatial = {2}, .output_spatial = {2}};
  const std::string text = b.finish({convolve(x, w, dims, {})});
  EXPECT_EQ(count(text, "\"stablehlo.convolution\""), 3u);
}

}  // namespace
}  // namespace torch_tpu::lowering
