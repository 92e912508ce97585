#include <gtest/gtest.h>

#include <array>

#include "stablehlo/builder.h"
#include "stablehlo/composition.h"
#include "stablehlo_test_support.h"

namespace torch_tpu::stablehlo {
namespace {

using CompositionTest = ExecutionTest;

TEST_F(CompositionTest, CallsFunctionsInOrder) {
  Builder first;
  const TensorType type{ElementType::kF32, {2}};
  const Value a = first.parameter(type), b = first.parameter(type);
  first.alias(0, 0);
  const std::string add_and_mul = first.finish({add(a, b), multiply(a, b)});
  Builder second;
  const Value x = second.parameter(type);
  const std::string negated = second.finish({negate(x)});

  const FunctionText f(add_and_mul), g(negated);
  EXPECT_EQ(f.parameter_types().size(), 2u);
  EXPECT_EQ(f.result_types().size(), 2u);
  const std::array<const FunctionText*, 2> functions{&f, &g};
  const std::vector<std::string> parameters{"tensor<2xf32>", "tensor<2xf32>"};
  constexpr uint32_t kP = ComposedValue::kParameter;
  const std::array<ComposedValue, 2> in{ComposedValue{kP, 0}, ComposedValue{kP, 1}};
  const std::array<ComposedValue, 1> sum{ComposedValue{0, 0}};
  const std::array<ComposedValue, 2> both{ComposedValue{1, 0}, ComposedValue{0, 1}};
  const std::array<ComposedCall, 3> calls{ComposedCall{0, in}, ComposedCall{1, sum},
                                          ComposedCall{0, both}};
  // (a + b, a * b); -(a + b); then -(a + b) + a * b and its product.
  const std::array<ComposedValue, 2> results{ComposedValue{2, 0}, ComposedValue{1, 0}};
  const std::array<ComposedAlias, 1> aliases{ComposedAlias{1, 0}};
  const std::string text = compose(functions, parameters, calls, results, aliases);
  EXPECT_EQ(text.find("tf.aliasing_output"), text.rfind("tf.aliasing_output"));

  const auto out = run_text(text, {tensor({2.f, 3.f}), tensor({5.f, 7.f})}, {type, type});
  EXPECT_TRUE(is(out[0], {3.f, 11.f}));
  EXPECT_TRUE(is(out[1], {-7.f, -10.f}));
}

TEST(Composition, RefusesWhatDoesNotFit) {
  Builder b;
  const std::string text = b.finish({b.parameter({ElementType::kF32, {2}})});
  const FunctionText f(text);
  const std::array<const FunctionText*, 1> functions{&f};
  const std::vector<std::string> parameters{"tensor<3xf32>"};
  const std::array<ComposedValue, 1> in{ComposedValue{ComposedValue::kParameter, 0}};
  const std::array<ComposedCall, 1> calls{ComposedCall{0, in}};
  EXPECT_THROW(compose(functions, parameters, calls, {}, {}), BuildError);
  EXPECT_THROW(compose(functions, {}, calls, {}, {}), BuildError);
  EXPECT_THROW(FunctionText("module @x {}"), BuildError);
}

}  // namespace
}  // namespace torch_tpu::stablehlo
