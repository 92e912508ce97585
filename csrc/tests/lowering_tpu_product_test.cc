// Products of matrices, as they are written for a TPU.
#include "lowering/contraction.h"
#include "lowering/platform.h"
#include "stablehlo_test_support.h"

namespace torch_tpu::lowering {
namespace {

using stablehlo::DotDims;
using stablehlo::HostTensor;

// The sides of a product as they come, and how they are reshaped and transposed before it.
struct Side {
  Dims dims, joined, permutation;
};
struct Case {
  const char* name;
  Side lhs, rhs;
  DotDims dims;
  const char* result;  // of the dot that is written for a TPU
};

const DotDims kMatrices{{}, {}, {1}, {0}}, kBatch{{0}, {0}, {2}, {1}};

const Case kCases[] = {
    {"Linear", {{2, 3, 5}, {6, 5}, {}}, {{5, 7}, {}, {}}, kMatrices, "tensor<2x3x7xf32>"},
    {"LinearOfHeads",
     {{2, 3, 4, 5}, {6, 20}, {}},
     {{20, 7}, {}, {}},
     kMatrices,
     "tensor<2x3x7xf32>"},
    {"TransposedWeight",
     {{2, 3, 5}, {6, 5}, {}},
     {{7, 5}, {}, {1, 0}},
     kMatrices,
     "tensor<2x3x7xf32>"},
    {"Batch",
     {{2, 3, 4, 5}, {6, 4, 5}, {}},
     {{2, 3, 5, 7}, {6, 5, 7}, {}},
     kBatch,
     "tensor<2x3x4x7xf32>"},
    {"BatchOfTransposed",
     {{2, 3, 5, 4}, {6, 5, 4}, {0, 2, 1}},
     {{2, 3, 7, 5}, {6, 7, 5}, {0, 2, 1}},
     kBatch,
     "tensor<2x3x4x7xf32>"},
    {"OneSideApart",
     {{2, 3, 4, 5}, {6, 4, 5}, {}},
     {{6, 5, 7}, {}, {}},
     kBatch,
     "tensor<6x4x7xf32>"},
    {"OtherColumns", {{4, 3, 5}, {6, 10}, {}}, {{10, 7}, {}, {}}, kMatrices, "tensor<6x7xf32>"},
    {"NothingJoined", {{6, 5}, {}, {}}, {{5, 7}, {}, {}}, kMatrices, "tensor<6x7xf32>"},
};

// Both sides' rows are contracted, and apart on both.
const Case kGradients[] = {
    {"Weight", {{2, 3, 5}, {6, 5}, {1, 0}}, {{2, 3, 7}, {6, 7}, {}}, kMatrices, ""},
    {"Untransposed", {{2, 3, 5}, {6, 5}, {}}, {{2, 3, 7}, {6, 7}, {}}, {{}, {}, {0}, {0}}, ""},
    {"OfHeads", {{2, 3, 4, 5}, {6, 20}, {1, 0}}, {{2, 3, 7}, {6, 7}, {}}, kMatrices, ""},
    {"RightTransposed",
     {{2, 3, 5}, {6, 5}, {1, 0}},
     {{2, 3, 7}, {6, 7}, {1, 0}},
     {{}, {}, {1}, {1}},
     ""},
};
// The same where the sides do not fit.
const Case kOtherGradients[] = {
    {"OtherRows", {{2, 3, 5}, {6, 5}, {1, 0}}, {{3, 2, 7}, {6, 7}, {}}, kMatrices, ""},
    {"OneSideApart", {{2, 3, 5}, {6, 5}, {1, 0}}, {{6, 7}, {}, {}}, kMatrices, ""},
};

Value prepared(Value v, const Side& side) {
  if (!side.joined.empty()) v = stablehlo::reshape(v, side.joined);
  return side.permutation.empty() ? v : stablehlo::transpose(v, side.permutation);
}

Value written(const Case& c, const Values& v, Platform platform) {
  const CompilingFor compiling(platform);
  return dot(prepared(v[0], c.lhs), prepared(v[1], c.rhs), c.dims);
}

std::string dot_line(const Case& c, Platform platform) {
  Builder b;
  const Values v{b.parameter({ElementType::kF32, c.lhs.dims}),
                 b.parameter({ElementType::kF32, c.rhs.dims})};
  const std::string text = b.finish({written(c, v, platform)});
  const size_t at = text.find("\"stablehlo.dot_general\"");
  return text.substr(at, text.find('\n', at) - at);
}

TEST(TpuProduct, KeepsApartWhatWasJoined) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.name);
    const std::string line = dot_line(c, Platform::kTpu);
    EXPECT_TRUE(line.ends_with("-> " + std::string(c.result))) << line;
    const bool batch = !c.dims.lhs_batching.empty();
    const std::string joined = batch ? "-> tensor<6x4x7xf32>" : "-> tensor<6x7xf32>";
    EXPECT_TRUE(dot_line(c, Platform::kCpu).ends_with(joined));
  }
}

TEST(TpuProduct, KeepsContractedRowsApart) {
  const std::string rows =
      "lhs_contracting_dimensions = [0, 1], rhs_contracting_dimensions = [0, 1]";
  for (const Case& c : kGradients) {
    SCOPED_TRACE(c.name);
    EXPECT_NE(dot_line(c, Platform::kTpu).find(rows), std::string::npos);
    EXPECT_EQ(dot_line(c, Platform::kCpu).find(rows), std::string::npos);
  }
  for (const Case& c : kOtherGradients) {
    SCOPED_TRACE(c.name);
    EXPECT_EQ(dot_line(c, Platform::kTpu).find(rows), std::string::npos);
  }
}

HostTensor whole_numbers(const Dims& dims, int64_t period) {
  HostTensor host{{ElementType::kF32, dims}, ""};
  for (int64_t i = 0; i < host.type.numel(); ++i) {
    const auto value = static_cast<float>(i * 7 % period - period / 2);
    host.bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  return host;
}

class TpuProductRun : public stablehlo::ExecutionTest {};

TEST_F(TpuProductRun, GivesTheSame) {
  std::vector<Case> cases(std::begin(kCases), std::end(kCases));
  cases.insert(cases.end(), std::begin(kGradients), std::end(kGradients));
  cases.insert(cases.end(), std::begin(kOtherGradients), std::end(kOtherGradients));
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const auto results =
        run({whole_numbers(c.lhs.dims, 11), whole_numbers(c.rhs.dims, 13)},
            [&](Builder&, const Values& v) {
              return Values{written(c, v, Platform::kTpu), written(c, v, Platform::kCpu)};
            });
    EXPECT_EQ(results[0].type, results[1].type);
    EXPECT_EQ(results[0].as<float>(), results[1].as<float>());
  }
}

}  // namespace
}  // namespace torch_tpu::lowering
