// Every elementwise operation, run on the plugin and compared with numbers known by hand.
#include "stablehlo_test_support.h"

namespace torch_tpu::stablehlo {
namespace {

class StablehloElementwise : public ExecutionTest {};
using Complex = std::complex<float>;

TEST_F(StablehloElementwise, FloatFunctionsOfOneArgument) {
  struct Case {
    const char* name;
    Value (*function)(Value);
    std::array<float, 2> inputs;
    std::array<double, 2> expected;
  };
  constexpr double kE = 2.718281828459045;
  constexpr double kPi = 3.141592653589793;
  const Case cases[] = {
      {"abs", abs, {-2.5f, 3}, {2.5, 3}},
      {"negate", negate, {-2.5f, 3}, {2.5, -3}},
      {"exponential", exponential, {1, 0}, {kE, 1}},
      {"exponential_minus_one", exponential_minus_one, {1, 1e-8f}, {kE - 1, 1e-8}},
      {"log", log, {static_cast<float>(kE), 1}, {1, 0}},
      {"log_plus_one", log_plus_one, {static_cast<float>(kE - 1), 0}, {1, 0}},
      {"logistic", logistic, {0, 100}, {0.5, 1}},
      {"sqrt", sqrt, {9, 2}, {3, 1.4142135623730951}},
      {"rsqrt", rsqrt, {4, 1}, {0.5, 1}},
      {"cbrt", cbrt, {-8, 27}, {-2, 3}},
      {"sine", sine, {static_cast<float>(kPi / 6), 0}, {0.5, 0}},
      {"cosine", cosine, {static_cast<float>(kPi / 3), 0}, {0.5, 1}},
      {"tan", tan, {static_cast<float>(kPi / 4), 0}, {1, 0}},
      {"tanh", tanh, {0.5493061443f, 0}, {0.5, 0}},
      {"floor", floor, {-1.5f, 2.9f}, {-2, 2}},
      {"ceil", ceil, {-1.5f, 2.1f}, {-1, 3}},
      {"round_nearest_even", round_nearest_even, {2.5f, -3.5f}, {2, -4}},
      {"round_nearest_afz", round_nearest_afz, {2.5f, -3.5f}, {3, -4}},
      {"sign", sign, {-7, 0}, {-1, 0}},
      {"erf", erf, {0.5f, 0}, {0.5204998778130465, 0}},
      {"erfc", erfc, {0.5f, 0}, {0.4795001221869535, 1}},
      {"erf_inv", erf_inv, {0.5204998778f, 0}, {0.5, 0}},
      {"lgamma", lgamma, {5, 0.5f}, {std::log(24.0), std::log(kPi) / 2}},
      {"digamma", digamma, {1, 2}, {-0.5772156649015329, 0.4227843350984671}},
      {"acos", acos, {0.5f, 1}, {kPi / 3, 0}},
      {"acosh", acosh, {1, 2}, {0, 1.3169578969248166}},
      {"asin", asin, {0.5f, -1}, {kPi / 6, -kPi / 2}},
      {"asinh", asinh, {0, 1}, {0, 0.881373587019543}},
      {"atan", atan, {1, -1}, {kPi / 4, -kPi / 4}},
      {"atanh", atanh, {0.5f, 0}, {0.5493061443340549, 0}},
      {"sinh", sinh, {1, 0}, {(kE - 1 / kE) / 2, 0}},
      {"cosh", cosh, {1, 0}, {(kE + 1 / kE) / 2, 1}},
      {"bessel_i1e", bessel_i1e, {1, 0}, {0.2079104153497085, 0}},
  };
  std::vector<HostTensor> inputs;
  for (const Case& c : cases) inputs.push_back(tensor({c.inputs[0], c.inputs[1]}));
  const auto outputs = run(inputs, [&](Builder&, const Values& v) {
    Values results;
    for (size_t i = 0; i < v.size(); ++i) results.push_back(cases[i].function(v[i]));
    return results;
  });
  for (size_t i = 0; i < outputs.size(); ++i) {
    EXPECT_TRUE(is_near(outputs[i], {cases[i].expected[0], cases[i].expected[1]})) << cases[i].name;
  }
}

TEST_F(StablehloElementwise, TheSameFunctionsCompileForEveryFloatType) {
  Value (*const functions[])(Value) = {abs,
                                       negate,
                                       exponential,
                                       exponential_minus_one,
                                       log,
                                       log_plus_one,
                                       logistic,
                                       sqrt,
                                       rsqrt,
                                       cbrt,
                                       sine,
                                       cosine,
                                       tan,
                                       tanh,
                                       floor,
                                       ceil,
                                       round_nearest_even,
                                       round_nearest_afz,
                                       sign,
                                       erf,
                                       erfc,
                                       erf_inv,
                                       lgamma,
                                       digamma,
                                       acos,
                                       acosh,
                                       asin,
                                       asinh,
                                       atan,
                                       atanh,
                                       sinh,
                                       cosh,
                                       bessel_i1e};
  for (const ElementType type : {ElementType::kBF16, ElementType::kF16, ElementType::kF64}) {
    const auto outputs = run({tensor({0.5f})}, [&](Builder&, const Values& v) {
      Values results;
      for (const auto function : functions) {
        results.push_back(convert(function(convert(v[0], type)), ElementType::kF32));
      }
      return results;
    });
    // acosh(0.5) is the only one without a value.
    for (size_t i = 0; i < outputs.size(); ++i) {
      EXPECT_EQ(std::isnan(outputs[i].as<float>()[0]), functions[i] == acosh) << i;
    }
    EXPECT_TRUE(is_near(outputs[2], {1.6487212707}, 0.02));
  }
}

TEST_F(StablehloElementwise, TestsOfFloats) {
  const auto outputs = run({tensor({1.0f, kInf, -kInf, kNan})}, [](Builder&, const Values& v) {
    return Values{is_finite(v[0]), is_inf(v[0]), is_pos_inf(v[0]), is_neg_inf(v[0])};
  });
  EXPECT_TRUE(is(outputs[0], {true, false, false, false}));
  EXPECT_TRUE(is(outputs[1], {false, true, true, false}));
  EXPECT_TRUE(is(outputs[2], {false, true, false, false}));
  EXPECT_TRUE(is(outputs[3], {false, false, true, false}));
}

TEST_F(StablehloElementwise, FloatFunctionsOfTwoArguments) {
  const auto outputs =
      run({tensor({7.5f, -7.5f}), tensor({2.0f, 2.0f})}, [](Builder&, const Values& v) {
        const Value a = v[0];
        const Value b = v[1];
        return Values{add(a, b),     subtract(a, b), multiply(a, b), divide(a, b), remainder(a, b),
                      maximum(a, b), minimum(a, b),  power(a, b),    atan2(a, b)};
      });
  EXPECT_TRUE(is(outputs[0], {9.5f, -5.5f}));
  EXPECT_TRUE(is(outputs[1], {5.5f, -9.5f}));
  EXPECT_TRUE(is(outputs[2], {15.0f, -15.0f}));
  EXPECT_TRUE(is(outputs[3], {3.75f, -3.75f}));
  EXPECT_TRUE(is(outputs[4], {1.5f, -1.5f}));
  EXPECT_TRUE(is(outputs[5], {7.5f, 2.0f}));
  EXPECT_TRUE(is(outputs[6], {2.0f, -7.5f}));
  EXPECT_TRUE(is_near(outputs[7], {56.25, 56.25}));
  EXPECT_TRUE(is_near(outputs[8], {1.3101939350475555, -1.3101939350475555}));
}

TEST_F(StablehloElementwise, SpecialFunctionsOfTwoArguments) {
  const auto outputs =
      run({tensor({1.0f, 1.0f}), tensor({2.0f, 0.0f}), tensor({1.0f, 2.0f}), tensor({2.0f, 3.0f})},
          [](Builder&, const Values& v) {
            return Values{next_after(v[0], v[1]), polygamma(v[0], v[2]), zeta(v[3], v[0])};
          });
  EXPECT_TRUE(is(outputs[0], {std::nextafter(1.0f, 2.0f), std::nextafter(1.0f, 0.0f)}));
  EXPECT_TRUE(is_near(outputs[1], {1.6449340668482264, 0.6449340668482264}));
  EXPECT_TRUE(is_near(outputs[2], {1.6449340668482264, 1.2020569031595942}));
}

TEST_F(StablehloElementwise, MaximumAndMinimumPropagateNan) {
  const auto outputs = run(
      {tensor({kNan, 1.0f, kNan}), tensor({1.0f, kNan, kNan})},
      [](Builder&, const Values& v) { return Values{maximum(v[0], v[1]), minimum(v[0], v[1])}; });
  EXPECT_TRUE(is(outputs[0], {kNan, kNan, kNan}));
  EXPECT_TRUE(is(outputs[1], {kNan, kNan, kNan}));
}

TEST_F(StablehloElementwise, SignedIntegers) {
  const auto outputs = run({tensor({7, -7}), tensor({2, 2})}, [](Builder&, const Values& v) {
    const Value a = v[0];
    const Value b = v[1];
    return Values{add(a, b),
                  subtract(a, b),
                  multiply(a, b),
                  divide(a, b),
                  remainder(a, b),
                  maximum(a, b),
                  minimum(a, b),
                  power(a, b),
                  and_(a, b),
                  or_(a, b),
                  xor_(a, b),
                  shift_left(a, b),
                  shift_right_arithmetic(a, b),
                  shift_right_logical(a, b),
                  abs(a),
                  negate(a),
                  sign(a),
                  not_(a),
                  popcnt(a),
                  count_leading_zeros(a)};
  });
  EXPECT_TRUE(is(outputs[0], {9, -5}));
  EXPECT_TRUE(is(outputs[1], {5, -9}));
  EXPECT_TRUE(is(outputs[2], {14, -14}));
  EXPECT_TRUE(is(outputs[3], {3, -3}));
  EXPECT_TRUE(is(outputs[4], {1, -1}));
  EXPECT_TRUE(is(outputs[5], {7, 2}));
  EXPECT_TRUE(is(outputs[6], {2, -7}));
  EXPECT_TRUE(is(outputs[7], {49, 49}));
  EXPECT_TRUE(is(outputs[8], {2, 0}));
  EXPECT_TRUE(is(outputs[9], {7, -5}));
  EXPECT_TRUE(is(outputs[10], {5, -5}));
  EXPECT_TRUE(is(outputs[11], {28, -28}));
  EXPECT_TRUE(is(outputs[12], {1, -2}));
  EXPECT_TRUE(is(outputs[13], {1, 0x3FFFFFFE}));
  EXPECT_TRUE(is(outputs[14], {7, 7}));
  EXPECT_TRUE(is(outputs[15], {-7, 7}));
  EXPECT_TRUE(is(outputs[16], {1, -1}));
  EXPECT_TRUE(is(outputs[17], {-8, 6}));
  EXPECT_TRUE(is(outputs[18], {3, 30}));
  EXPECT_TRUE(is(outputs[19], {29, 0}));
}

TEST_F(StablehloElementwise, UnsignedIntegers) {
  const auto outputs = run({tensor<uint8_t>({200, 7})}, [](Builder&, const Values& v) {
    const Value a = v[0];
    return Values{abs(a),
                  add(a, a),
                  divide(a, full_like(a, 3)),
                  gt(a, full_like(a, 100)),
                  shift_right_logical(a, full_like(a, 1)),
                  not_(a)};
  });
  EXPECT_TRUE(is<uint8_t>(outputs[0], {200, 7}));
  EXPECT_TRUE(is<uint8_t>(outputs[1], {144, 14}));
  EXPECT_TRUE(is<uint8_t>(outputs[2], {66, 2}));
  EXPECT_TRUE(is(outputs[3], {true, false}));
  EXPECT_TRUE(is<uint8_t>(outputs[4], {100, 3}));
  EXPECT_TRUE(is<uint8_t>(outputs[5], {55, 248}));
}

TEST_F(StablehloElementwise, Bools) {
  const auto outputs =
      run({tensor({false, false, true, true}), tensor({false, true, false, true})},
          [](Builder&, const Values& v) {
            const Value a = v[0];
            const Value b = v[1];
            return Values{add(a, b), multiply(a, b), maximum(a, b), minimum(a, b), and_(a, b),
                          or_(a, b), xor_(a, b),     not_(a),       lt(a, b)};
          });
  EXPECT_TRUE(is(outputs[0], {false, true, true, true}));
  EXPECT_TRUE(is(outputs[1], {false, false, false, true}));
  EXPECT_TRUE(is(outputs[2], {false, true, true, true}));
  EXPECT_TRUE(is(outputs[3], {false, false, false, true}));
  EXPECT_TRUE(is(outputs[4], {false, false, false, true}));
  EXPECT_TRUE(is(outputs[5], {false, true, true, true}));
  EXPECT_TRUE(is(outputs[6], {false, true, true, false}));
  EXPECT_TRUE(is(outputs[7], {true, true, false, false}));
  EXPECT_TRUE(is(outputs[8], {false, true, false, false}));
}

TEST_F(StablehloElementwise, ComplexNumbers) {
  const auto outputs =
      run({tensor({3.0f, 0.0f}), tensor({4.0f, 1.0f})}, [](Builder&, const Values& v) {
        const Value z = complex(v[0], v[1]);
        const Value w = full_like(z, std::complex<double>(0, 1));
        return Values{z,
                      abs(z),
                      real(z),
                      imag(z),
                      multiply(z, w),
                      eq(z, w),
                      exponential(multiply(z, w)),
                      negate(z),
                      divide(z, w),
                      real(v[0]),
                      imag(v[0])};
      });
  EXPECT_TRUE(is(outputs[0], {Complex(3, 4), Complex(0, 1)}));
  EXPECT_TRUE(is_near(outputs[1], {5, 1}));
  EXPECT_TRUE(is(outputs[2], {3.0f, 0.0f}));
  EXPECT_TRUE(is(outputs[3], {4.0f, 1.0f}));
  EXPECT_TRUE(is(outputs[4], {Complex(-4, 3), Complex(-1, 0)}));
  EXPECT_TRUE(is(outputs[5], {false, true}));
  EXPECT_NEAR(outputs[6].as<Complex>()[1].real(), 0.36787944, 1e-6);
  EXPECT_TRUE(is(outputs[7], {Complex(-3, -4), Complex(0, -1)}));
  EXPECT_TRUE(is(outputs[8], {Complex(4, -3), Complex(1, 0)}));
  EXPECT_TRUE(is(outputs[9], {3.0f, 0.0f}));
  EXPECT_TRUE(is(outputs[10], {0.0f, 0.0f}));
}

TEST_F(StablehloElementwise, ComplexFunctionsCompile) {
  Value (*const functions[])(Value) = {exponential, exponential_minus_one,
                                       log,         log_plus_one,
                                       logistic,    sqrt,
                                       rsqrt,       sine,
                                       cosine,      tan,
                                       tanh,        sign,
                                       acos,        acosh,
                                       asin,        asinh,
                                       atan,        atanh,
                                       sinh,        cosh};
  for (const auto function : functions) {
    const auto out = run1({tensor({Complex(0.25f, 0)})}, [&](const Values& v) {
      // On the real axis, as the real function; acosh has its branch cut here.
      const Value z = function(v[0]);
      return function == acosh ? abs(z) : subtract(real(z), function(real(v[0])));
    });
    EXPECT_TRUE(is_near(out, {function == acosh ? 1.318116071652818 : 0.0}, 1e-5));
  }
}

TEST_F(StablehloElementwise, Comparisons) {
  const auto outputs = run({tensor({1.0f, 2.0f, 3.0f, kNan}), tensor({2.0f, 2.0f, 2.0f, 2.0f})},
                           [](Builder&, const Values& v) {
                             return Values{eq(v[0], v[1]), ne(v[0], v[1]), lt(v[0], v[1]),
                                           le(v[0], v[1]), gt(v[0], v[1]), ge(v[0], v[1])};
                           });
  EXPECT_TRUE(is(outputs[0], {false, true, false, false}));
  EXPECT_TRUE(is(outputs[1], {true, false, true, true}));
  EXPECT_TRUE(is(outputs[2], {true, false, false, false}));
  EXPECT_TRUE(is(outputs[3], {true, true, false, false}));
  EXPECT_TRUE(is(outputs[4], {false, false, true, false}));
  EXPECT_TRUE(is(outputs[5], {false, true, true, false}));
}

TEST_F(StablehloElementwise, SelectAndClamp) {
  const auto outputs = run(
      {tensor({true, false, true}), tensor({true}, {}), tensor({1, 2, 3}), tensor({-1, -2, -3})},
      [](Builder& b, const Values& v) {
        return Values{select(v[0], v[2], v[3]), select(v[1], v[2], v[3]),
                      clamp(scalar(b, ElementType::kS32, 2), v[2], full_like(v[2], 2))};
      });
  EXPECT_TRUE(is(outputs[0], {1, -2, 3}));
  EXPECT_TRUE(is(outputs[1], {1, 2, 3}));
  EXPECT_TRUE(is(outputs[2], {2, 2, 2}));
}

TEST_F(StablehloElementwise, Conversions) {
  const auto outputs =
      run({tensor({0.0f, -0.0f, 2.75f, kNan, -3.5f}), tensor({0, 300, -1})},
          [](Builder&, const Values& v) {
            const Value z = complex(v[0], v[0]);
            return Values{convert(v[0], ElementType::kPred),
                          convert(v[1], ElementType::kPred),
                          convert(z, ElementType::kPred),
                          convert(z, ElementType::kF64),
                          convert(v[1], ElementType::kC64),
                          convert(z, ElementType::kC128),
                          convert(v[1], ElementType::kU8),
                          convert(slice_dim(v[0], 0, 2, 3), ElementType::kS8),
                          convert(convert(v[1], ElementType::kPred), ElementType::kF32),
                          convert(convert(v[0], ElementType::kF8E5M2), ElementType::kF32)};
          });
  EXPECT_TRUE(is(outputs[0], {false, false, true, true, true}));
  EXPECT_TRUE(is(outputs[1], {false, true, true}));
  EXPECT_TRUE(is(outputs[2], {false, false, true, true, true}));
  EXPECT_TRUE(is(outputs[3], {0.0, -0.0, 2.75, double{kNan}, -3.5}));
  EXPECT_TRUE(is(outputs[4], {Complex(0, 0), Complex(300, 0), Complex(-1, 0)}));
  EXPECT_EQ(outputs[5].as<std::complex<double>>()[2], std::complex<double>(2.75, 2.75));
  EXPECT_TRUE(is<uint8_t>(outputs[6], {0, 44, 255}));
  EXPECT_TRUE(is<int8_t>(outputs[7], {2}));
  EXPECT_TRUE(is(outputs[8], {0.0f, 1.0f, 1.0f}));
  EXPECT_TRUE(is(outputs[9], {0.0f, -0.0f, 3.0f, kNan, -3.5f}));
}

TEST_F(StablehloElementwise, BitsAndPrecision) {
  const auto outputs = run({tensor({1.0f, -2.0f})}, [](Builder&, const Values& v) {
    const Value bytes = bitcast_convert(v[0], ElementType::kU8);
    return Values{bitcast_convert(v[0], ElementType::kS32), bytes,
                  bitcast_convert(bytes, ElementType::kF32),
                  reduce_precision(add(v[0], full_like(v[0], 1.0 / 1024)), 8, 7)};
  });
  EXPECT_TRUE(is(outputs[0], {0x3F800000, static_cast<int32_t>(0xC0000000)}));
  EXPECT_EQ(outputs[1].type.dims, (Dims{2, 4}));
  EXPECT_TRUE(is<uint8_t>(outputs[1], {0, 0, 0x80, 0x3F, 0, 0, 0, 0xC0}));
  EXPECT_TRUE(is(outputs[2], {1.0f, -2.0f}));
  EXPECT_TRUE(is(outputs[3], {1.0f, -2.0f}));
}

}  // namespace
}  // namespace torch_tpu::stablehlo
