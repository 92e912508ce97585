// What the builder writes, infers and refuses; needs no plugin.
#include <gtest/gtest.h>

#include <limits>

#include "stablehlo/builder.h"

namespace torch_tpu::stablehlo {
namespace {

using enum ElementType;

// The message of the BuildError that `write` throws; empty if it throws none.
template <typename F>
std::string refusal(const F& write) {
  try {
    write();
  } catch (const BuildError& error) {
    return error.what();
  }
  return "";
}

// The line of a one-operation program that makes the result.
std::string line(const std::vector<TensorType>& parameters,
                 const std::function<Value(Builder&, const Values&)>& write) {
  Builder b;
  Values values;
  for (const TensorType& type : parameters) values.push_back(b.parameter(type));
  const std::string text = b.finish({write(b, values)});
  const size_t begin = text.find("    %");
  const size_t end = text.find("    \"func.return\"");
  if (begin == std::string::npos || begin > end) return "";
  return text.substr(begin + 4, end - begin - 5);
}

class BuilderTest : public ::testing::Test {
 protected:
  Builder b;
  const Value f = b.parameter({kF32, {2, 3}});
  const Value i = b.parameter({kS32, {2, 3}});
  const Value p = b.parameter({kPred, {2, 3}});
  const Value z = b.parameter({kC64, {2, 3}});
};

TEST(StablehloText, Module) {
  Builder b("pair");
  const Value x = b.parameter({kF32, {2}});
  const Value y = b.parameter({kF32, {2}});
  b.alias(1, 0);
  EXPECT_EQ(b.num_parameters(), 2u);
  const Value sum = add(x, y);
  EXPECT_EQ(b.num_operations(), 1u);
  EXPECT_EQ(
      b.finish({sum, x}),
      "module @pair {\n"
      "  func.func public @main(%0: tensor<2xf32>, "
      "%1: tensor<2xf32> {tf.aliasing_output = 0 : i32}) -> (tensor<2xf32>, tensor<2xf32>) {\n"
      "    %2 = \"stablehlo.add\"(%0, %1) : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>\n"
      "    \"func.return\"(%2, %0) : (tensor<2xf32>, tensor<2xf32>) -> ()\n"
      "  }\n"
      "}\n");
}

TEST(StablehloText, ModuleNamesAreQuotedWhenTheyMustBe) {
  EXPECT_EQ(Builder("aten.add \"x\"").finish({}).substr(0, 28), "module @\"aten.add \\22x\\22\" {");
}

TEST(StablehloText, Regions) {
  Builder b;
  const Value x = b.parameter({kF32, {4}});
  const std::string text = b.finish({reduce_sum(x, {0})});
  EXPECT_NE(text.find("    %2 = \"stablehlo.reduce\"(%0, %1) ({\n"
                      "    ^bb0(%3: tensor<f32>, %4: tensor<f32>):\n"
                      "      %5 = \"stablehlo.add\"(%3, %4) : (tensor<f32>, tensor<f32>) -> "
                      "tensor<f32>\n"
                      "      \"stablehlo.return\"(%5) : (tensor<f32>) -> ()\n"
                      "    }) {dimensions = array<i64: 0>} : (tensor<4xf32>, tensor<f32>) -> "
                      "tensor<f32>\n"),
            std::string::npos)
      << text;
}

TEST(StablehloText, SeveralResults) {
  EXPECT_EQ(line({{kF32, {2, 4}}}, [](Builder&, const Values& v) { return top_k(v[0], 3)[0]; }),
            "%1, %2 = \"chlo.top_k\"(%0) {k = 3 : i64} : (tensor<2x4xf32>) -> "
            "(tensor<2x3xf32>, tensor<2x3xi32>)");
}

TEST(StablehloText, Constants) {
  const auto text = [](const TensorType& type, auto value) {
    const std::string all =
        line({}, [&](Builder& b, const Values&) { return splat(b, type, value); });
    const size_t begin = all.find("dense");
    return all.substr(begin, all.find("} : ()") - begin);
  };
  constexpr double kInf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(text({kF32, {2}}, 1.0), "dense<1.0> : tensor<2xf32>");
  EXPECT_EQ(text({kF32, {}}, -0.0), "dense<-0.0> : tensor<f32>");
  EXPECT_EQ(text({kF32, {}}, 0.1), "dense<0.10000000149011612> : tensor<f32>");
  EXPECT_EQ(text({kF64, {}}, 1e300), "dense<1.0e+300> : tensor<f64>");
  EXPECT_EQ(text({kF32, {}}, -kInf), "dense<0xFF800000> : tensor<f32>");
  EXPECT_EQ(text({kF16, {}}, kInf), "dense<0x7C00> : tensor<f16>");
  EXPECT_EQ(text({kBF16, {}}, kInf), "dense<0x7F80> : tensor<bf16>");
  EXPECT_EQ(text({kU64, {}}, std::numeric_limits<uint64_t>::max()),
            "dense<18446744073709551615> : tensor<ui64>");
  EXPECT_EQ(text({kPred, {}}, true), "dense<true> : tensor<i1>");
  EXPECT_EQ(text({kC64, {}}, std::complex<double>(1, kInf)),
            "dense<(1.0, 0x7F800000)> : tensor<complex<f32>>");
  EXPECT_EQ(text({kS32, {0, 2}}, 7), "dense<> : tensor<0x2xi32>");
  const std::vector<int64_t> list = {1, -2};
  EXPECT_EQ(line({}, [&](Builder& b, const Values&) { return constant(b, list, kS32); }),
            "%0 = \"stablehlo.constant\"() {value = dense<[1, -2]> : tensor<2xi32>} : () -> "
            "tensor<2xi32>");
  const float data[] = {1.0f, -2.0f};
  EXPECT_EQ(
      line({}, [&](Builder& b, const Values&) { return constant_bytes(b, data, {kF32, {2, 1}}); }),
      "%0 = \"stablehlo.constant\"() {value = dense<\"0x0000803F000000C0\"> : "
      "tensor<2x1xf32>} : () -> tensor<2x1xf32>");
}

TEST(StablehloText, Attributes) {
  const TensorType f{kF32, {2, 3}};
  EXPECT_EQ(line({f, f}, [](Builder&, const Values& v) { return le(v[0], v[1]); }),
            "%2 = \"stablehlo.compare\"(%0, %1) {comparison_direction = "
            "#stablehlo<comparison_direction LE>, compare_type = #stablehlo<comparison_type "
            "FLOAT>} : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xi1>");
  EXPECT_EQ(line({f}, [](Builder&, const Values& v) { return transpose(v[0], {1, 0}); }),
            "%1 = \"stablehlo.transpose\"(%0) {permutation = array<i64: 1, 0>} : "
            "(tensor<2x3xf32>) -> tensor<3x2xf32>");
  EXPECT_EQ(line({{kF32, {}}}, [](Builder&, const Values& v) { return broadcast_to(v[0], {2}); }),
            "%1 = \"stablehlo.broadcast_in_dim\"(%0) {broadcast_dimensions = array<i64>} : "
            "(tensor<f32>) -> tensor<2xf32>");
  EXPECT_EQ(line({f, f},
                 [](Builder&, const Values& v) {
                   return dot_general(v[0], v[1], {.lhs_contracting = {1}, .rhs_contracting = {1}},
                                      kF32);
                 }),
            "%2 = \"stablehlo.dot_general\"(%0, %1) {dot_dimension_numbers = "
            "#stablehlo.dot<lhs_batching_dimensions = [], rhs_batching_dimensions = [], "
            "lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [1]>, "
            "precision_config = [#stablehlo<precision HIGHEST>, #stablehlo<precision HIGHEST>]} : "
            "(tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x2xf32>");
  EXPECT_EQ(line({f},
                 [](Builder& b, const Values& v) {
                   return custom_call(b, "target", {v[0]}, {{kF32, {1}}}, "{a = 1 : i64}")[0];
                 }),
            "%1 = \"stablehlo.custom_call\"(%0) {call_target_name = \"target\", has_side_effect = "
            "false, backend_config = {a = 1 : i64}, api_version = 4 : i32} : (tensor<2x3xf32>) -> "
            "tensor<1xf32>");
}

TEST(StablehloText, ConvolutionLayout) {
  const std::string text =
      line({{kF32, {1, 5, 5, 4}}, {kF32, {3, 3, 2, 6}}}, [](Builder&, const Values& v) {
        return convolution(v[0], v[1],
                           {.input_batch = 0,
                            .input_feature = 3,
                            .input_spatial = {1, 2},
                            .kernel_output_feature = 3,
                            .kernel_input_feature = 2,
                            .kernel_spatial = {0, 1},
                            .output_batch = 0,
                            .output_feature = 3,
                            .output_spatial = {1, 2}},
                           {.strides = {2, 1}, .padding_low = {1, 0}, .feature_groups = 2}, kF32);
      });
  EXPECT_NE(text.find("#stablehlo.conv<[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]>"),
            std::string::npos);
  EXPECT_NE(text.find("padding = dense<[[1, 0], [0, 0]]> : tensor<2x2xi64>"), std::string::npos);
  EXPECT_NE(text.find("-> tensor<1x2x3x6xf32>"), std::string::npos) << text;
}

TEST_F(BuilderTest, InfersTypes) {
  EXPECT_EQ(abs(z).type(), (TensorType{kF32, {2, 3}}));
  EXPECT_EQ(complex(f, f).type(), z.type());
  EXPECT_EQ(is_finite(f).type(), p.type());
  EXPECT_EQ(eq(z, z).type(), p.type());
  EXPECT_EQ(concatenate({f, f, f}, 1).dims(), (Dims{2, 9}));
  EXPECT_EQ(slice(f, {0, 1}, {2, 3}, {2, 2}).dims(), (Dims{1, 1}));
  EXPECT_EQ(pad(f, scalar(b, kF32, 0), {1, -1}, {0, 0}, {2, 1}).dims(), (Dims{5, 4}));
  EXPECT_EQ(expand_dim(f, 2).dims(), (Dims{2, 3, 1}));
  EXPECT_EQ(reduce_max(f, {0}).dims(), (Dims{3}));
  EXPECT_EQ(bitcast_convert(f, kU8).dims(), (Dims{2, 3, 4}));
  EXPECT_EQ(fft(f, FftType::kRfft, {3}).type(), (TensorType{kC64, {2, 2}}));
  EXPECT_EQ(broadcast_shapes({{2, 1}, {3}, {}}), (Dims{2, 3}));
  EXPECT_EQ(broadcast_shapes({{0, 1}, {1, 3}}), (Dims{0, 3}));
}

TEST_F(BuilderTest, WritesNothingWhereNothingChanges) {
  EXPECT_EQ(convert(f, kF32), f);
  EXPECT_EQ(reshape(f, {2, 3}), f);
  EXPECT_EQ(transpose(f, {0, 1}), f);
  EXPECT_EQ(slice(f, {0, 0}, {2, 3}), f);
  EXPECT_EQ(broadcast_to(f, {2, 3}), f);
  EXPECT_EQ(concatenate({f}, 0), f);
  EXPECT_EQ(reverse(f, {}), f);
  EXPECT_EQ(reduce_sum(f, {}), f);
  EXPECT_EQ(b.num_operations(), 0u);
}

TEST_F(BuilderTest, TypesStayValidWhileTheProgramGrows) {
  const TensorType& type = f.type();
  for (int n = 0; n < 10000; ++n) negate(f);
  EXPECT_EQ(&type, &f.type());
}

TEST_F(BuilderTest, RefusalsNameTheOperationAndTheTypes) {
  EXPECT_EQ(refusal([&] { add(f, i); }),
            "add: operands must have the same type, got tensor<2x3xf32> and tensor<2x3xi32>; use "
            "broadcast_to() and convert()");
  EXPECT_EQ(refusal([&] { sine(i); }),
            "sine: expected a float or complex tensor, got tensor<2x3xi32>");
  EXPECT_EQ(refusal([&] { erf(z); }), "erf: expected a float tensor, got tensor<2x3xcomplex<f32>>");
  EXPECT_EQ(refusal([&] { reshape(f, {4}); }),
            "reshape: tensor<2x3xf32> has 6 elements, but tensor<4xf32> has 4");
  EXPECT_EQ(refusal([&] { transpose(f, {1, 1}); }),
            "transpose: permutation [1, 1] repeats a dimension");
  EXPECT_EQ(refusal([&] { reduce_sum(f, {2}); }),
            "reduce: dimensions 2 is out of range for rank 2");
}

TEST_F(BuilderTest, Refusals) {
  const Value s = b.parameter({kF32, {}});
  const auto refused = [](const auto& write, const char* op) {
    const std::string message = refusal(write);
    EXPECT_EQ(message.substr(0, message.find(':')), op) << message;
  };
  refused([&] { lt(z, z); }, "compare");
  refused([&] { subtract(p, p); }, "subtract");
  refused([&] { select(i, f, f); }, "select");
  refused([&] { select(p, f, i); }, "select");
  refused([&] { clamp(i, f, s); }, "clamp");
  refused([&] { complex(i, i); }, "complex");
  refused([&] { bitcast_convert(p, kU8); }, "bitcast_convert");
  refused([&] { bitcast_convert(z, kF32); }, "bitcast_convert");
  refused([&] { bitcast_convert(f, kF64); }, "bitcast_convert");
  refused([&] { broadcast_to(f, {2, 4}); }, "broadcast_in_dim");
  refused([&] { broadcast_to(f, {3}); }, "broadcast_to");
  refused([&] { broadcast_shapes({{2}, {3}}); }, "broadcast_shapes");
  refused([&] { slice(f, {0, 0}, {2, 4}); }, "slice");
  refused([&] { slice_dim(f, 0, 2, 1); }, "slice");
  refused([&] { dynamic_slice(f, {s, s}, {1, 1}); }, "dynamic_slice");
  refused([&] { pad(f, s, {-2, 0}, {-1, 0}); }, "pad");
  refused([&] { concatenate({f, i}, 0); }, "concatenate");
  refused([&] { squeeze_dim(f, 0); }, "squeeze_dim");
  refused([&] { iota(b, {kS32, {2}}, 1); }, "iota");
  refused([&] { sort({f, s}, 0, false, [](const Values& v) { return v; }); }, "sort");
  refused([&] { top_k(f, 4); }, "top_k");
  refused([&] { cholesky(f, true); }, "cholesky");
  refused([&] { fft(f, FftType::kFft, {3}); }, "fft");
  refused([&] { fft(z, FftType::kIrfft, {6}); }, "fft");
  refused([&] { if_(p, {}, {}, {}); }, "if");
  refused([&] { rng_bit_generator(f, {kU32, {1}}); }, "rng_bit_generator");
  refused([&] { custom_call(b, "t", {}, {}, "text"); }, "custom_call");
  refused([&] { dot_general(f, f, {.lhs_contracting = {1}, .rhs_contracting = {0}}, kF32); },
          "dot_general");
  refused([&] { dot_general(i, i, {.lhs_contracting = {1}, .rhs_contracting = {1}}, kF32); },
          "dot_general");
  refused(
      [&] {
        gather(f, i, {.offset_dims = {}, .collapsed_slice_dims = {0}, .start_index_map = {0}},
               {1, 3});
      },
      "gather");
  refused([&] { splat(b, {kS8, {}}, 128); }, "splat");
  refused([&] { splat(b, {kU8, {}}, -1); }, "splat");
  refused([&] { splat(b, {kS32, {}}, 0.5); }, "splat");
  refused([&] { splat(b, {kS64, {}}, 1e19); }, "splat");
  refused([&] { splat(b, {kF32, {}}, std::complex<double>(0, 1)); }, "splat");
  refused([&] { constant(b, std::vector<int64_t>{1}, TensorType{kS32, {2}}); }, "constant");
  refused([&] { negate(Value()); }, "value");
}

TEST_F(BuilderTest, RegionsMustReturnTheRightTypes) {
  EXPECT_EQ(refusal([&] {
              reduce({f}, {scalar(b, kF32, 0)}, {0},
                     [](const Values& v) { return Values{lt(v[0], v[1])}; });
            }),
            "reduce: its region must return (tensor<f32>), got (tensor<i1>)");
}

TEST_F(BuilderTest, ValuesStayInTheirRegion) {
  Value inner;
  reduce({f}, {scalar(b, kF32, 0)}, {0, 1}, [&](const Values& v) {
    inner = add(v[0], v[1]);
    return Values{inner};
  });
  EXPECT_NE(refusal([&] { negate(inner); }).find("region that has ended"), std::string::npos);

  const Value outer = reduce_sum(f, {0, 1});
  EXPECT_NE(refusal([&] {
              reduce({f}, {scalar(b, kF32, 0)}, {0, 1},
                     [&](const Values& v) { return Values{add(v[0], outer)}; });
            }).find("outside of the enclosing"),
            std::string::npos);

  Builder other;
  const Value foreign = other.parameter(f.type());
  EXPECT_EQ(refusal([&] { add(f, foreign); }), "add: an operand belongs to another program");
}

TEST_F(BuilderTest, ARefusedOperationLeavesTheProgramAsItWas) {
  Builder plain;
  const Value x = plain.parameter({kF32, {2}});
  const std::string expected = plain.finish({negate(x)});

  Builder tried;
  const Value y = tried.parameter({kF32, {2}});
  const Value zero = y;
  EXPECT_NE(refusal([&] {
              sort({zero}, 0, false, [](const Values& v) {
                lt(v[0], v[1]);
                return v;
              });
            }),
            "");
  EXPECT_EQ(tried.num_operations(), 0u);
  EXPECT_EQ(tried.finish({negate(y)}), expected);
}

TEST_F(BuilderTest, AliasesAreChecked) {
  EXPECT_NE(refusal([&] { b.alias(9, 0); }), "");
  b.alias(0, 0);
  EXPECT_NE(refusal([&] { b.alias(0, 1); }), "");
  EXPECT_NE(refusal([&] { b.finish({i}); }), "");
}

TEST_F(BuilderTest, AProgramIsFinishedOnce) {
  b.finish({f});
  EXPECT_EQ(refusal([&] { b.finish({f}); }), "finish: the program is finished already");
}

}  // namespace
}  // namespace torch_tpu::stablehlo
