// Constants must arrive on the device bit by bit as they were written.
#include "stablehlo_test_support.h"

namespace torch_tpu::stablehlo {
namespace {

class StablehloConstants : public ExecutionTest {};
constexpr double kDoubleNan = std::numeric_limits<double>::quiet_NaN();

TEST_F(StablehloConstants, FloatSplatsAreRoundedOnce) {
  struct Case {
    ElementType type;
    double value;
    uint64_t bits;
  };
  const Case cases[] = {
      {ElementType::kF64, 0.1, 0x3FB999999999999A},
      {ElementType::kF64, 5e-324, 1},
      {ElementType::kF64, -1.7976931348623157e308, 0xFFEFFFFFFFFFFFFF},
      {ElementType::kF64, kDoubleNan, 0x7FF8000000000000},
      {ElementType::kF32, 0.1, 0x3DCCCCCD},
      {ElementType::kF32, -0.0, 0x80000000},
      {ElementType::kF32, 1e-45, 1},
      {ElementType::kF32, 16777217.0, 0x4B800000},  // a tie: to even
      {ElementType::kF32, 1e39, 0x7F800000},
      {ElementType::kF32, -kInf, 0xFF800000},
      {ElementType::kF32, kDoubleNan, 0x7FC00000},
      {ElementType::kF16, 0.1, 0x2E66},
      {ElementType::kF16, 65504, 0x7BFF},
      {ElementType::kF16, 65519.99, 0x7BFF},
      {ElementType::kF16, 65520, 0x7C00},  // a tie: to even, which is infinity
      {ElementType::kF16, 5.960464477539063e-08, 1},
      {ElementType::kF16, 2.98e-08, 0},
      {ElementType::kF16, 2049, 0x6800},
      {ElementType::kF16, 2051, 0x6802},
      {ElementType::kF16, kDoubleNan, 0x7E00},
      {ElementType::kBF16, 0.1, 0x3DCD},
      {ElementType::kBF16, 1.00390625, 0x3F80},
      {ElementType::kBF16, 1.01171875, 0x3F82},
      {ElementType::kBF16, 3.4e38, 0x7F80},
      {ElementType::kBF16, -2.5, 0xC020},
      {ElementType::kF8E4M3FN, 448, 0x7E},
      {ElementType::kF8E4M3FN, 464, 0x7E},
      {ElementType::kF8E4M3FN, 465, 0x7F},
      {ElementType::kF8E4M3FN, -kInf, 0x7F},
      {ElementType::kF8E4M3FN, -1.0625, 0xB8},
      {ElementType::kF8E5M2, 57344, 0x7B},
      {ElementType::kF8E5M2, 61440, 0x7C},
      {ElementType::kF8E5M2, kDoubleNan, 0x7E},
      {ElementType::kF8E5M2, 1.125, 0x3C},
  };
  const auto outputs = run({}, [&](Builder& b, const Values&) {
    Values results;
    for (const Case& c : cases) results.push_back(splat(b, {c.type, {2}}, c.value));
    return results;
  });
  for (size_t i = 0; i < outputs.size(); ++i) {
    uint64_t first = 0;
    uint64_t second = 0;
    const size_t size = outputs[i].bytes.size() / 2;
    std::memcpy(&first, outputs[i].bytes.data(), size);
    std::memcpy(&second, outputs[i].bytes.data() + size, size);
    // The sign of a NaN has no meaning.
    const bool is_nan = cases[i].type == ElementType::kF8E4M3FN && cases[i].bits == 0x7F;
    EXPECT_EQ(is_nan ? first & 0x7F : first, cases[i].bits) << i;
    EXPECT_EQ(first, second) << i;
  }
}

TEST_F(StablehloConstants, OtherSplats) {
  const auto outputs = run({}, [](Builder& b, const Values&) {
    return Values{splat(b, {ElementType::kS8, {2}}, -128),
                  splat(b, {ElementType::kU64, {}}, std::numeric_limits<uint64_t>::max()),
                  splat(b, {ElementType::kS64, {}}, std::numeric_limits<int64_t>::min()),
                  splat(b, {ElementType::kPred, {2}}, true),
                  splat(b, {ElementType::kPred, {}}, 0),
                  splat(b, {ElementType::kC64, {2}}, std::complex<double>(0.5, -kInf)),
                  splat(b, {ElementType::kC128, {}}, 3),
                  splat(b, {ElementType::kS32, {}}, -7.0),
                  splat(b, {ElementType::kF32, {}}, 3),
                  splat(b, {ElementType::kF32, {}}, true),
                  splat(b, {ElementType::kU64, {}}, 1e19),
                  splat(b, {ElementType::kF32, {0, 3}}, 1.0),
                  scalar(b, ElementType::kF64, 0.1f),
                  scalar(b, ElementType::kU8, size_t{255}),
                  scalar(b, ElementType::kF32, std::complex<double>(2, 0))};
  });
  EXPECT_TRUE(is<int8_t>(outputs[0], {-128, -128}));
  EXPECT_TRUE(is(outputs[1], {std::numeric_limits<uint64_t>::max()}));
  EXPECT_TRUE(is(outputs[2], {std::numeric_limits<int64_t>::min()}));
  EXPECT_TRUE(is(outputs[3], {true, true}));
  EXPECT_TRUE(is(outputs[4], {false}));
  EXPECT_TRUE(is(outputs[5], {std::complex<float>(0.5, -kInf), std::complex<float>(0.5, -kInf)}));
  EXPECT_TRUE(is(outputs[6], {std::complex<double>(3, 0)}));
  EXPECT_TRUE(is(outputs[7], {-7}));
  EXPECT_TRUE(is(outputs[8], {3.0f}));
  EXPECT_TRUE(is(outputs[9], {1.0f}));
  EXPECT_TRUE(is(outputs[10], {uint64_t{10000000000000000000u}}));
  EXPECT_TRUE(is<float>(outputs[11], {}));
  EXPECT_TRUE(is(outputs[12], {static_cast<double>(0.1f)}));
  EXPECT_TRUE(is<uint8_t>(outputs[13], {255}));
  EXPECT_TRUE(is(outputs[14], {2.0f}));
}

TEST_F(StablehloConstants, Lists) {
  const std::vector<int64_t> integers = {3, -1, 2, 5};
  const std::vector<double> doubles = {0.1, -kInf, kDoubleNan, 2};
  const auto outputs = run({}, [&](Builder& b, const Values&) {
    return Values{
        constant(b, integers),
        constant(b, integers, ElementType::kS8),
        constant(b, integers, TensorType{ElementType::kF32, {2, 2}}),
        constant(b, integers, TensorType{ElementType::kS16, {2, 2}}),
        constant(b, doubles, {ElementType::kF32, {4}}),
        constant(b, doubles, {ElementType::kF64, {4, 1}}),
        constant(b, doubles, {ElementType::kC64, {2, 2}}),
        constant(b, std::vector<int64_t>{}),
        constant(b, std::vector<int64_t>{7}, TensorType{ElementType::kS64, {}}),
        constant(b, std::vector<int64_t>(100, 4)),
        constant(b, std::vector<int64_t>{1, 0, 1, 1}, TensorType{ElementType::kPred, {2, 2}})};
  });
  EXPECT_TRUE(is<int64_t>(outputs[0], {3, -1, 2, 5}));
  EXPECT_TRUE(is<int8_t>(outputs[1], {3, -1, 2, 5}));
  EXPECT_TRUE(is<float>(outputs[2], {3, -1, 2, 5}));
  EXPECT_TRUE(is<int16_t>(outputs[3], {3, -1, 2, 5}));
  EXPECT_TRUE(is<float>(outputs[4], {0.1f, -kInf, kNan, 2}));
  EXPECT_TRUE(is<double>(outputs[5], {0.1, -kInf, kNan, 2}));
  EXPECT_TRUE(is_near(HostTensor{{ElementType::kF32, {8}}, outputs[6].bytes},
                      {0.1, 0, -kInf, 0, kNan, 0, 2, 0}));
  EXPECT_TRUE(is<int64_t>(outputs[7], {}));
  EXPECT_TRUE(is<int64_t>(outputs[8], {7}));
  EXPECT_EQ(outputs[9].as<int64_t>(), std::vector<int64_t>(100, 4));
  EXPECT_TRUE(is(outputs[10], {true, false, true, true}));
}

TEST_F(StablehloConstants, Bytes) {
  const HostTensor cases[] = {
      tensor({1.5f, -2.0f, kNan, 0.1f}, {2, 2}),
      tensor({std::complex<double>(1, 2), std::complex<double>(3, 4)}),
      tensor({true, false, true, true, false, true}, {3, 1, 2}),
      tensor({true, true}),
      tensor({false}, {}),
      tensor<uint16_t>({7, 7, 7}),
      tensor({int64_t{-5}}, {}),
      tensor<float>({}, {2, 0}),
      tensor<bool>({}, {0}),
      HostTensor{{ElementType::kBF16, {3}}, std::string("\x80\x3f\xcd\x3d\x80\xff", 6)},
      HostTensor{{ElementType::kF8E4M3FN, {2}}, std::string("\x7e\xb8", 2)},
  };
  const auto outputs = run({}, [&](Builder& b, const Values&) {
    Values results;
    for (const HostTensor& c : cases) results.push_back(constant_bytes(b, c.bytes.data(), c.type));
    return results;
  });
  for (size_t i = 0; i < outputs.size(); ++i) EXPECT_EQ(outputs[i].bytes, cases[i].bytes) << i;
}

TEST_F(StablehloConstants, IotaAndExtremes) {
  const auto outputs = run({}, [](Builder& b, const Values&) {
    const auto one = [](ElementType type) { return TensorType{type, {1}}; };
    const auto as_float = [](Value v) { return convert(v, ElementType::kF32); };
    return Values{iota(b, {ElementType::kS32, {2, 3}}, 1),
                  iota(b, {ElementType::kF32, {2, 2}}, 0),
                  lowest(b, one(ElementType::kF32)),
                  highest(b, one(ElementType::kF64)),
                  as_float(highest(b, one(ElementType::kBF16))),
                  as_float(lowest(b, one(ElementType::kF8E4M3FN))),
                  lowest(b, one(ElementType::kS64)),
                  highest(b, one(ElementType::kS8)),
                  lowest(b, one(ElementType::kU32)),
                  highest(b, one(ElementType::kU64)),
                  highest(b, one(ElementType::kPred)),
                  lowest(b, one(ElementType::kPred))};
  });
  EXPECT_TRUE(is(outputs[0], {0, 1, 2, 0, 1, 2}));
  EXPECT_TRUE(is<float>(outputs[1], {0, 0, 1, 1}));
  EXPECT_TRUE(is(outputs[2], {-kInf}));
  EXPECT_TRUE(is(outputs[3], {double{kInf}}));
  EXPECT_TRUE(is(outputs[4], {kInf}));
  EXPECT_TRUE(is(outputs[5], {-448.0f}));
  EXPECT_TRUE(is(outputs[6], {std::numeric_limits<int64_t>::min()}));
  EXPECT_TRUE(is<int8_t>(outputs[7], {127}));
  EXPECT_TRUE(is<uint32_t>(outputs[8], {0}));
  EXPECT_TRUE(is(outputs[9], {std::numeric_limits<uint64_t>::max()}));
  EXPECT_TRUE(is(outputs[10], {true}));
  EXPECT_TRUE(is(outputs[11], {false}));
}

}  // namespace
}  // namespace torch_tpu::stablehlo
