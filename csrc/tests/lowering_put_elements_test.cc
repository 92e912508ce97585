// One single index, as it is written for a CPU.
#include "lowering/indexing.h"
#include "lowering/platform.h"
#include "stablehlo_test_support.h"

namespace torch_tpu::lowering {
namespace {

using stablehlo::HostTensor;
using stablehlo::product;
using stablehlo::tensor;
using stablehlo::TensorType;

struct Case {
  const char* name;
  Dims operand;
  std::vector<bool> indexed;  // which dimensions have an index
  Dims index;                 // the shape of each index
  Dims updates;
  int starts;  // of the scatter, on a CPU
};

const Case kCases[] = {
    {"Row", {8, 3}, {true}, {1}, {1, 3}, 2},
    {"MiddleDimension", {2, 8, 3}, {false, true}, {1}, {2, 1, 3}, 2},
    {"LastDimension", {2, 8}, {false, true}, {1}, {2, 1}, 2},
    {"NumberInATensor", {2, 8, 3}, {false, true}, {}, {2, 3}, 2},
    {"TwoIndices", {8, 9, 3}, {true, true}, {1}, {1, 3}, 2},
    {"TwoIndicesApart", {8, 3, 9}, {true, false, true}, {1}, {1, 3}, 2},
    {"MatrixOfOne", {8, 3}, {true}, {1, 1}, {1, 1, 3}, 2},
    {"Several", {8, 3}, {true}, {2}, {2, 3}, 2},
    {"LargeUpdate", {2, 300}, {true}, {1}, {1, 300}, 1},
};

Value written(const Case& c, const Values& v, Merge merge, Platform platform) {
  const CompilingFor compiling(platform);
  Values indices;
  for (const bool indexed : c.indexed) {
    indices.push_back(
        indexed ? stablehlo::reshape(stablehlo::slice(v[1], {0}, {product(c.index)}), c.index)
                : Value());
  }
  return put_elements(v[0], advanced_index(c.operand, indices, Negative::kWrap), v[2], merge);
}

HostTensor counting(const Dims& dims, float from) {
  HostTensor host{{ElementType::kF32, dims}, ""};
  for (int64_t i = 0; i < host.type.numel(); ++i) {
    const float value = from + static_cast<float>(i);
    host.bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  return host;
}

int starts(const Case& c, Merge merge, Platform platform) {
  Builder b;
  const Value v =
      written(c,
              {b.parameter({ElementType::kF32, c.operand}), b.parameter({ElementType::kS64, {2}}),
               b.parameter({ElementType::kF32, c.updates})},
              merge, platform);
  const std::string text = b.finish({v});
  // The scatter's second operand: "... : (tensor<8x3xf32>, tensor<2x1xi32>, ..."
  const size_t at = text.find(", tensor<", text.find("}) {scatter_dimension_numbers"));
  return text[at + 9] - '0';
}

TEST(PutElements, SeveralIndicesForTheCpu) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.name);
    EXPECT_EQ(starts(c, Merge::kAssign, Platform::kCpu), c.starts);
    if (product(c.index) > 1) continue;
    EXPECT_EQ(starts(c, Merge::kAssign, Platform::kTpu), 1);
    EXPECT_EQ(starts(c, Merge::kAdd, Platform::kCpu), 1);
  }
}

class PutElementsRun : public stablehlo::ExecutionTest {};

TEST_F(PutElementsRun, GivesTheSame) {
  for (const Case& c : kCases) {
    for (const int64_t index : {0, 1, -1, 7}) {
      SCOPED_TRACE(std::string(c.name) + " " + std::to_string(index));
      const auto results =
          run({counting(c.operand, 0), tensor<int64_t>({index, 1}), counting(c.updates, -1000)},
              [&](Builder&, const Values& v) {
                return Values{written(c, v, Merge::kAssign, Platform::kCpu),
                              written(c, v, Merge::kAssign, Platform::kTpu)};
              });
      EXPECT_EQ(results[0].type, results[1].type);
      EXPECT_EQ(results[0].as<float>(), results[1].as<float>());
    }
  }
}

}  // namespace
}  // namespace torch_tpu::lowering
