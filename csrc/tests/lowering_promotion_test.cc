// Type promotion against the table torch.promote_types gives.
#include <gtest/gtest.h>

#include <array>

#include "lowering/promotion.h"

namespace torch_tpu::lowering {
namespace {

using enum stablehlo::ElementType;

constexpr std::array kTypes{kPred, kU8,   kS8,  kS16, kS32, kS64,
                            kF16,  kBF16, kF32, kF64, kC64, kC128};
constexpr size_t kCount = kTypes.size();

// torch.promote_types(kTypes[row], kTypes[column]), except complex32.
constexpr std::array<std::array<ElementType, kCount>, kCount> kPromoted{{
    {kPred, kU8, kS8, kS16, kS32, kS64, kF16, kBF16, kF32, kF64, kC64, kC128},
    {kU8, kU8, kS16, kS16, kS32, kS64, kF16, kBF16, kF32, kF64, kC64, kC128},
    {kS8, kS16, kS8, kS16, kS32, kS64, kF16, kBF16, kF32, kF64, kC64, kC128},
    {kS16, kS16, kS16, kS16, kS32, kS64, kF16, kBF16, kF32, kF64, kC64, kC128},
    {kS32, kS32, kS32, kS32, kS32, kS64, kF16, kBF16, kF32, kF64, kC64, kC128},
    {kS64, kS64, kS64, kS64, kS64, kS64, kF16, kBF16, kF32, kF64, kC64, kC128},
    {kF16, kF16, kF16, kF16, kF16, kF16, kF16, kF32, kF32, kF64, kC64, kC128},
    {kBF16, kBF16, kBF16, kBF16, kBF16, kBF16, kF32, kBF16, kF32, kF64, kC64, kC128},
    {kF32, kF32, kF32, kF32, kF32, kF32, kF32, kF32, kF32, kF64, kC64, kC128},
    {kF64, kF64, kF64, kF64, kF64, kF64, kF64, kF64, kF64, kF64, kC128, kC128},
    {kC64, kC64, kC64, kC64, kC64, kC64, kC64, kC64, kC64, kC128, kC64, kC128},
    {kC128, kC128, kC128, kC128, kC128, kC128, kC128, kC128, kC128, kC128, kC128, kC128},
}};

TEST(PromoteTypes, IsPyTorchsTable) {
  for (size_t i = 0; i < kCount; ++i) {
    for (size_t j = 0; j < kCount; ++j) {
      EXPECT_EQ(promote_types(kTypes[i], kTypes[j]), kPromoted[i][j])
          << stablehlo::name(kTypes[i]) << " with " << stablehlo::name(kTypes[j]);
    }
  }
}

class ResultType : public ::testing::Test {
 protected:
  TensorArgument tensor(ElementType type, Dims dims) {
    return {builder_.parameter({type, std::move(dims)}), false};
  }
  TensorArgument wrapped(ElementType type) { return {builder_.parameter({type, {}}), true}; }
  static Number number(ElementType type) { return {type, 2.0, std::nullopt, {}}; }

  ElementType of(Argument a, Argument b) {
    Call call(builder_, "aten::add", "Tensor");
    call.set("a", std::move(a));
    call.set("b", std::move(b));
    return result_type(call, {"a", "b", "absent"});
  }

  Builder builder_;
};

TEST_F(ResultType, DimensionedTensorsOutweighScalarsOfTheirCategory) {
  EXPECT_EQ(of(tensor(kS32, {2}), tensor(kS64, {})), kS32);
  EXPECT_EQ(of(tensor(kF32, {2}), tensor(kF64, {})), kF32);
  EXPECT_EQ(of(tensor(kBF16, {}), tensor(kF16, {3})), kF16);
  EXPECT_EQ(of(tensor(kS8, {2}), tensor(kS64, {1})), kS64);
}

TEST_F(ResultType, AHigherCategoryRises) {
  EXPECT_EQ(of(tensor(kS64, {2}), tensor(kF16, {})), kF16);
  EXPECT_EQ(of(tensor(kPred, {2}), tensor(kU8, {})), kU8);
  EXPECT_EQ(of(tensor(kF64, {2}), tensor(kC64, {})), kC128);
  EXPECT_EQ(of(tensor(kF32, {2}), tensor(kC128, {})), kC64);
}

TEST_F(ResultType, NumbersWeighLeast) {
  EXPECT_EQ(of(tensor(kF16, {2}), number(kF64)), kF16);
  EXPECT_EQ(of(tensor(kS8, {2}), number(kS64)), kS8);
  EXPECT_EQ(of(tensor(kS8, {2}), number(kF64)), kF32);
  EXPECT_EQ(of(tensor(kS8, {}), number(kF64)), kF32);
  EXPECT_EQ(of(tensor(kF64, {}), number(kC128)), kC128);
  EXPECT_EQ(of(tensor(kPred, {2}), number(kPred)), kPred);
  EXPECT_EQ(of(tensor(kPred, {2}), number(kS64)), kS64);
  EXPECT_EQ(of(tensor(kBF16, {2}), wrapped(kF64)), kBF16);
  EXPECT_EQ(of(tensor(kS32, {2}), wrapped(kF64)), kF32);
  EXPECT_EQ(of(number(kS64), number(kF64)), kF32);
}

TEST_F(ResultType, NothingHasNoType) {
  const Call call(builder_, "aten::add", "Tensor");
  EXPECT_THROW(result_type(call, {"absent"}), Unsupported);
}

TEST_F(ResultType, TheDefaultDtypeIsThatOfTheScope) {
  {
    const DefaultFloat outer(kF64);
    EXPECT_EQ(of(tensor(kS8, {2}), number(kF64)), kF64);
    EXPECT_EQ(of(tensor(kS8, {2}), number(kC128)), kC128);
    EXPECT_EQ(of(tensor(kF32, {2}), number(kF64)), kF32);
    EXPECT_EQ(to_floating(kS64), kF64);
    const DefaultFloat inner(kBF16);
    EXPECT_EQ(to_floating(kPred), kBF16);
    EXPECT_EQ(to_floating(kF16), kF16);
    EXPECT_EQ(of(tensor(kS8, {2}), number(kC128)), kC64);
  }
  EXPECT_EQ(to_floating(kS64), kF32);
}

}  // namespace
}  // namespace torch_tpu::lowering
