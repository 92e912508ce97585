// Products of matrices, as they are written for a CPU.
#include "lowering/contraction.h"
#include "lowering/platform.h"
#include "stablehlo_test_support.h"

namespace torch_tpu::lowering {
namespace {

using stablehlo::DotDims;
using stablehlo::HostTensor;
using stablehlo::TensorType;

struct Case {
  const char* name;
  Dims lhs;
  Dims reshaped;  // of the left side before the product; empty: none
  Dims rhs;
  Dims permutation;  // the same, after reshaping
  DotDims dims;
  int contracted;  // dimensions
};

const Case kCases[] = {
    {"WeightGradient", {96, 128}, {}, {96, 160}, {1, 0}, {{}, {}, {1}, {0}}, 2},
    {"Untransposed", {96, 128}, {}, {96, 160}, {}, {{}, {}, {0}, {0}}, 2},
    {"RightTransposed", {96, 128}, {}, {160, 96}, {1, 0}, {{}, {}, {1}, {1}}, 2},
    {"Reshaped", {4, 24, 128}, {96, 128}, {96, 160}, {1, 0}, {{}, {}, {1}, {0}}, 2},
    {"ReshapedOfFour", {2, 3, 16, 128}, {96, 128}, {160, 96}, {1, 0}, {{}, {}, {1}, {1}}, 3},
    {"ReshapedOfBoth", {24, 4, 2, 64}, {96, 128}, {96, 160}, {1, 0}, {{}, {}, {1}, {0}}, 2},
    {"ReshapedOfOne", {1, 96, 128}, {96, 128}, {96, 160}, {1, 0}, {{}, {}, {1}, {0}}, 2},
    {"ReshapedColumns", {96, 4, 32}, {96, 128}, {96, 160}, {1, 0}, {{}, {}, {1}, {0}}, 2},
    {"OddDepth", {99, 128}, {}, {99, 160}, {1, 0}, {{}, {}, {1}, {0}}, 2},
    {"PrimeDepth", {97, 128}, {}, {97, 160}, {1, 0}, {{}, {}, {1}, {0}}, 1},
    {"DepthIsLast", {128, 96}, {}, {96, 160}, {}, {{}, {}, {1}, {0}}, 1},
    {"TransposedToFirst", {160, 96}, {}, {160, 96}, {1, 0}, {{}, {}, {0}, {1}}, 2},
    {"Batch", {3, 48, 128}, {}, {3, 48, 96}, {0, 2, 1}, {{0}, {0}, {2}, {1}}, 1},
    {"Small", {16, 32}, {}, {16, 32}, {1, 0}, {{}, {}, {1}, {0}}, 1},
    {"Column", {2048, 1024}, {}, {2048, 1}, {1, 0}, {{}, {}, {1}, {0}}, 1},
    {"Row", {1, 128}, {}, {128, 160}, {}, {{}, {}, {1}, {0}}, 1},
};

Value written(const Case& c, const Values& sides, Platform platform) {
  const CompilingFor compiling(platform);
  Value lhs = sides[0];
  if (!c.reshaped.empty()) lhs = stablehlo::reshape(lhs, c.reshaped);
  if (!c.permutation.empty()) lhs = stablehlo::transpose(lhs, c.permutation);
  return dot(lhs, sides[1], c.dims);
}

std::string text_of(const Case& c, ElementType type, Platform platform) {
  Builder b;
  const Values sides{b.parameter({type, c.lhs}), b.parameter({type, c.rhs})};
  return b.finish({written(c, sides, platform)});
}

int contracted(const std::string& text) {
  const size_t at = text.find("rhs_contracting_dimensions = [");
  const std::string list = text.substr(at, text.find(']', at) - at);
  return 1 + static_cast<int>(std::count(list.begin(), list.end(), ','));
}

TEST(CpuProduct, IsForTheCpu) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.name);
    EXPECT_EQ(contracted(text_of(c, ElementType::kF32, Platform::kCpu)), c.contracted);
    EXPECT_EQ(contracted(text_of(c, ElementType::kF32, Platform::kTpu)), 1);
    EXPECT_EQ(contracted(text_of(c, ElementType::kF64, Platform::kCpu)), 1);
  }
}

// Whole numbers: every order of summation gives the same.
HostTensor whole_numbers(const Dims& dims, int64_t period) {
  HostTensor host{{ElementType::kF32, dims}, ""};
  for (int64_t i = 0; i < host.type.numel(); ++i) {
    const auto value = static_cast<float>(i * 7 % period - period / 2);
    host.bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  return host;
}

class CpuProductRun : public stablehlo::ExecutionTest {};

TEST_F(CpuProductRun, GivesTheSame) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.name);
    const auto results =
        run({whole_numbers(c.lhs, 11), whole_numbers(c.rhs, 13)}, [&](Builder&, const Values& v) {
          return Values{written(c, v, Platform::kCpu), written(c, v, Platform::kTpu)};
        });
    EXPECT_EQ(results[0].type, results[1].type);
    EXPECT_EQ(results[0].as<float>(), results[1].as<float>());
  }
}

// Products of a vector with a matrix that is seen transposed.
struct VectorCase {
  const char* name;
  Dims lhs, rhs;  // as stored
  bool matrix_first;
  DotDims dims;  // of the product, after transposing the matrix
};

const VectorCase kVectorCases[] = {
    {"Row", {1, 24}, {40, 24}, false, {{}, {}, {1}, {0}}},
    {"Vector", {24}, {40, 24}, false, {{}, {}, {0}, {0}}},
    {"Column", {24, 40}, {24, 1}, true, {{}, {}, {1}, {0}}},
    {"VectorLast", {24, 40}, {24}, true, {{}, {}, {1}, {0}}},
};

Value written(const VectorCase& c, const Values& sides, Platform platform) {
  const CompilingFor compiling(platform);
  const auto side = [&](size_t i, bool matrix) {
    return matrix ? stablehlo::transpose(sides[i], {1, 0}) : sides[i];
  };
  return dot(side(0, c.matrix_first), side(1, !c.matrix_first), c.dims);
}

TEST(CpuProduct, ReadsTheMatrixBesideAVectorAsStored) {
  for (const VectorCase& c : kVectorCases) {
    SCOPED_TRACE(c.name);
    for (const Platform platform : {Platform::kCpu, Platform::kTpu}) {
      Builder b;
      const Values sides{b.parameter({ElementType::kF32, c.lhs}),
                         b.parameter({ElementType::kF32, c.rhs})};
      const std::string text = b.finish({written(c, sides, platform)});
      // Of the parameters themselves.
      EXPECT_EQ(text.find("dot_general\"(%0, %1)") != std::string::npos, platform == Platform::kCpu)
          << text;
    }
  }
}

TEST_F(CpuProductRun, GivesTheSameWithVectors) {
  for (const VectorCase& c : kVectorCases) {
    SCOPED_TRACE(c.name);
    const auto results =
        run({whole_numbers(c.lhs, 11), whole_numbers(c.rhs, 13)}, [&](Builder&, const Values& v) {
          return Values{written(c, v, Platform::kCpu), written(c, v, Platform::kTpu)};
        });
    EXPECT_EQ(results[0].type, results[1].type);
    EXPECT_EQ(results[0].as<float>(), results[1].as<float>());
  }
}

// Attention's scores: queries with the transposed keys, which are seen through heads.
Value scores(const Values& v, const Dims& permutation, Platform platform) {
  const CompilingFor compiling(platform);
  const Value keys = stablehlo::transpose(v[1], permutation);
  return dot(v[0], stablehlo::reshape(keys, {6, 8, 5}), {{0}, {0}, {2}, {1}});
}

const Dims kQueries{6, 4, 8}, kKeys{2, 5, 3, 8}, kTransposed{0, 2, 3, 1};

TEST(CpuProduct, ReadsTheMatricesOfABatchAsStored) {
  for (const Platform platform : {Platform::kCpu, Platform::kTpu}) {
    Builder b;
    const Values v{b.parameter({ElementType::kF32, kQueries}),
                   b.parameter({ElementType::kF32, kKeys})};
    const std::string text = b.finish({scores(v, kTransposed, platform)});
    const char* const contracted = platform == Platform::kCpu ? "rhs_contracting_dimensions = [2]"
                                                              : "rhs_contracting_dimensions = [1]";
    EXPECT_NE(text.find(contracted), std::string::npos) << text;
  }
}

TEST_F(CpuProductRun, GivesTheSameInABatch) {
  const auto results =
      run({whole_numbers(kQueries, 11), whole_numbers(kKeys, 13)}, [&](Builder&, const Values& v) {
        return Values{scores(v, kTransposed, Platform::kCpu),
                      scores(v, kTransposed, Platform::kTpu)};
      });
  EXPECT_EQ(results[0].type, results[1].type);
  EXPECT_EQ(results[0].as<float>(), results[1].as<float>());
}

}  // namespace
}  // namespace torch_tpu::lowering
