// Shape, indexing and control operations, run on the plugin.
#include "stablehlo_test_support.h"

namespace torch_tpu::stablehlo {
namespace {

class StablehloShape : public ExecutionTest {};
class StablehloIndexing : public ExecutionTest {};
class StablehloControl : public ExecutionTest {};

const HostTensor kMatrix = tensor({1, 2, 3, 4, 5, 6}, {2, 3});

TEST_F(StablehloShape, Broadcasts) {
  const auto outputs = run({tensor({1, 2}), tensor({5}, {})}, [](Builder&, const Values& v) {
    return Values{broadcast_in_dim(v[0], {2, 3}, {0}), broadcast_to(v[0], {2, 2}),
                  broadcast_to(v[1], {2}), broadcast_to(expand_dim(v[0], 1), {2, 2})};
  });
  EXPECT_TRUE(is(outputs[0], {1, 1, 1, 2, 2, 2}));
  EXPECT_TRUE(is(outputs[1], {1, 2, 1, 2}));
  EXPECT_TRUE(is(outputs[2], {5, 5}));
  EXPECT_TRUE(is(outputs[3], {1, 1, 2, 2}));
}

TEST_F(StablehloShape, ReshapesAndTransposes) {
  const auto outputs = run({kMatrix}, [](Builder&, const Values& v) {
    return Values{reshape(v[0], {3, 2}),   flatten(v[0]),
                  transpose(v[0], {1, 0}), reverse(v[0], {1}),
                  reverse(v[0], {0, 1}),   squeeze_dim(slice_dim(v[0], 0, 1, 2), 0)};
  });
  EXPECT_TRUE(is(outputs[0], {1, 2, 3, 4, 5, 6}));
  EXPECT_TRUE(is(outputs[1], {1, 2, 3, 4, 5, 6}));
  EXPECT_TRUE(is(outputs[2], {1, 4, 2, 5, 3, 6}));
  EXPECT_TRUE(is(outputs[3], {3, 2, 1, 6, 5, 4}));
  EXPECT_TRUE(is(outputs[4], {6, 5, 4, 3, 2, 1}));
  EXPECT_TRUE(is(outputs[5], {4, 5, 6}));
}

TEST_F(StablehloShape, Slices) {
  const auto outputs = run({kMatrix, tensor({1}, {}), tensor({1}, {}), tensor({70, 80}, {1, 2})},
                           [](Builder&, const Values& v) {
                             return Values{slice(v[0], {0, 0}, {2, 3}, {1, 2}),
                                           slice(v[0], {1, 1}, {2, 3}),
                                           slice_dim(v[0], 1, 1, 3),
                                           dynamic_slice(v[0], {v[1], v[2]}, {1, 2}),
                                           dynamic_update_slice(v[0], v[3], {v[1], v[2]}),
                                           slice(v[0], {1, 1}, {1, 1})};
                           });
  EXPECT_TRUE(is(outputs[0], {1, 3, 4, 6}));
  EXPECT_TRUE(is(outputs[1], {5, 6}));
  EXPECT_TRUE(is(outputs[2], {2, 3, 5, 6}));
  EXPECT_TRUE(is(outputs[3], {5, 6}));
  EXPECT_TRUE(is(outputs[4], {1, 2, 3, 4, 70, 80}));
  EXPECT_TRUE(is<int>(outputs[5], {}));
}

TEST_F(StablehloShape, PadsAndConcatenates) {
  const auto outputs = run({tensor({1, 2, 3}), tensor({9}, {}), kMatrix}, [](Builder&,
                                                                             const Values& v) {
    return Values{pad(v[0], v[1], {1}, {2}), pad(v[0], v[1], {-1}, {1}, {1}),
                  concatenate({v[0], v[0]}, 0), concatenate({v[2], slice_dim(v[2], 1, 0, 1)}, 1)};
  });
  EXPECT_TRUE(is(outputs[0], {9, 1, 2, 3, 9, 9}));
  EXPECT_TRUE(is(outputs[1], {9, 2, 9, 3, 9}));
  EXPECT_TRUE(is(outputs[2], {1, 2, 3, 1, 2, 3}));
  EXPECT_TRUE(is(outputs[3], {1, 2, 3, 1, 4, 5, 6, 4}));
}

TEST_F(StablehloShape, EmptyAndScalarTensors) {
  const auto outputs =
      run({tensor<float>({}, {0, 3}), tensor({2.0f}, {})}, [](Builder&, const Values& v) {
        return Values{add(v[0], v[0]),       transpose(v[0], {1, 0}),        reduce_sum(v[0], {0}),
                      flatten(v[0]),         concatenate({v[0], v[0]}, 0),   expand_dim(v[1], 0),
                      reshape(v[0], {3, 0}), pad(v[0], v[1], {1, 0}, {0, 0})};
      });
  EXPECT_TRUE(is<float>(outputs[0], {}));
  EXPECT_TRUE(is<float>(outputs[1], {}));
  EXPECT_TRUE(is<float>(outputs[2], {0, 0, 0}));
  EXPECT_TRUE(is<float>(outputs[3], {}));
  EXPECT_TRUE(is<float>(outputs[4], {}));
  EXPECT_TRUE(is<float>(outputs[5], {2}));
  EXPECT_TRUE(is<float>(outputs[6], {}));
  EXPECT_TRUE(is<float>(outputs[7], {2, 2, 2}));
}

TEST_F(StablehloIndexing, Gather) {
  const auto outputs =
      run({kMatrix, tensor({1, 0, 1}), tensor({2, 0}, {2, 1})}, [](Builder&, const Values& v) {
        // Whole rows; and one element of each row, the rows being a batch.
        return Values{gather(v[0], v[1],
                             {.offset_dims = {1},
                              .collapsed_slice_dims = {0},
                              .start_index_map = {0},
                              .index_vector_dim = 1},
                             {1, 3}),
                      gather(v[0], v[2],
                             {.offset_dims = {},
                              .collapsed_slice_dims = {1},
                              .operand_batching_dims = {0},
                              .start_indices_batching_dims = {0},
                              .start_index_map = {1},
                              .index_vector_dim = 2},
                             {1, 1})};
      });
  EXPECT_EQ(outputs[0].type.dims, (Dims{3, 3}));
  EXPECT_TRUE(is(outputs[0], {4, 5, 6, 1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(outputs[1].type.dims, (Dims{2, 1}));
  EXPECT_TRUE(is(outputs[1], {3, 4}));
}

TEST_F(StablehloIndexing, Scatter) {
  const auto outputs =
      run({kMatrix, tensor({1, 1}), tensor({10, 20, 30, 1, 2, 3}, {2, 3}), tensor({2, 0}, {2, 1}),
           tensor({-1, -2}, {2, 1})},
          [](Builder&, const Values& v) {
            return Values{scatter(v[0], v[1], v[2],
                                  {.update_window_dims = {1},
                                   .inserted_window_dims = {0},
                                   .scatter_dims_to_operand_dims = {0},
                                   .index_vector_dim = 1},
                                  [](const Values& a) { return Values{add(a[0], a[1])}; }),
                          scatter(
                              v[0], v[3], v[4],
                              {.update_window_dims = {},
                               .inserted_window_dims = {1},
                               .input_batching_dims = {0},
                               .scatter_indices_batching_dims = {0},
                               .scatter_dims_to_operand_dims = {1},
                               .index_vector_dim = 2},
                              [](const Values& a) { return Values{a[1]}; }, false, true)};
          });
  EXPECT_TRUE(is(outputs[0], {1, 2, 3, 15, 27, 39}));
  EXPECT_TRUE(is(outputs[1], {1, 2, -1, -2, 5, 6}));
}

TEST_F(StablehloControl, If) {
  for (const bool pred : {true, false}) {
    const auto outputs = run({tensor({pred}, {}), tensor({6.0f})}, [](Builder&, const Values& v) {
      return if_(
          v[0], [&](const Values&) { return Values{add(v[1], v[1]), v[1]}; },
          [&](const Values&) { return Values{full_like(v[1], 1), negate(v[1])}; },
          {v[1].type(), v[1].type()});
    });
    EXPECT_TRUE(is(outputs[0], {pred ? 12.0f : 1.0f}));
    EXPECT_TRUE(is(outputs[1], {pred ? 6.0f : -6.0f}));
  }
}

TEST_F(StablehloControl, While) {
  // The greatest common divisor; `zero` and the parameter are values from outside of the loop.
  const auto outputs =
      run({tensor({54}, {}), tensor({24}, {}), tensor({1}, {})}, [](Builder& b, const Values& v) {
        const Value zero = scalar(b, ElementType::kS32, 0);
        return while_(
            {v[0], v[1], zero}, [&](const Values& s) { return Values{ne(s[1], zero)}; },
            [&](const Values& s) { return Values{s[1], remainder(s[0], s[1]), add(s[2], v[2])}; });
      });
  EXPECT_TRUE(is(outputs[0], {6}));
  EXPECT_TRUE(is(outputs[1], {0}));
  EXPECT_TRUE(is(outputs[2], {2}));
}

TEST_F(StablehloControl, LoopsInLoopsInBranches) {
  const auto outputs =
      run({tensor({3}, {}), tensor({5}, {}), tensor({true}, {})}, [](Builder& b, const Values& v) {
        const Value one = scalar(b, ElementType::kS32, 1);
        const auto outer_body = [&](const Values& s) {
          // Adds s[0] until the counter, which starts at s[0], is v[1].
          const Value total = while_(
              {s[1], s[0]}, [&](const Values& t) { return Values{lt(t[1], v[1])}; },
              [&](const Values& t) { return Values{add(t[0], s[0]), add(t[1], one)}; })[0];
          return Values{add(s[0], one), total};
        };
        return if_(
            v[2],
            [&](const Values&) {
              return while_(
                  {full_like(v[0], 0), v[1]},
                  [&](const Values& s) { return Values{lt(s[0], v[0])}; }, outer_body);
            },
            [&](const Values&) { return Values{v[0], v[1]}; }, {v[0].type(), v[0].type()});
      });
  EXPECT_TRUE(is(outputs[0], {3}));
  EXPECT_TRUE(is(outputs[1], {5 + 5 * 0 + 4 * 1 + 3 * 2}));
}

TEST_F(StablehloControl, ConstantsReachEveryBody) {
  const auto outputs = run({tensor({3.0f, 4.0f})}, [](Builder& b, const Values& v) {
    const Value two = scalar(b, ElementType::kF32, 2);
    const auto body = [&](const Values& s) {
      const Values sum = reduce({v[0]}, {two}, {0}, [&](const Values& a) {
        return Values{add(a[0], multiply(two, a[1]))};
      });
      return Values{add(s[0], sum[0])};
    };
    return while_(
        {two}, [&](const Values& s) { return Values{lt(s[0], full_like(two, 20))}; }, body);
  });
  // Each round adds 2 + 2 * 3 + 2 * 4.
  EXPECT_TRUE(is(outputs[0], {2.0f + 16 + 16}));
}

TEST_F(StablehloControl, RngBitGenerator) {
  const auto program = [](Builder&, const Values& v) {
    const auto [state, bits] = rng_bit_generator(v[0], {ElementType::kU32, {8}});
    const auto [next, more] = rng_bit_generator(state, {ElementType::kU32, {8}});
    return Values{state, bits, more, next};
  };
  const HostTensor key = tensor<uint64_t>({42, 0});
  const auto first = run({key}, program);
  const auto second = run({key}, program);
  EXPECT_EQ(first[1].bytes, second[1].bytes);
  EXPECT_NE(first[1].bytes, first[2].bytes);
  EXPECT_NE(first[0].bytes, key.bytes);
}

TEST_F(StablehloControl, CustomCall) {
  // A target that the compiler itself handles, on every platform; alone it changes nothing.
  const auto outputs = run({tensor({3.0f, 1.0f, 2.0f})}, [](Builder& b, const Values& v) {
    return custom_call(b, "Sharding", {v[0]}, {v[0].type()}, "", 1);
  });
  EXPECT_TRUE(is(outputs[0], {3.0f, 1.0f, 2.0f}));
}

TEST_F(StablehloControl, OptimizationBarrierAndTopK) {
  const auto outputs =
      run({tensor({3.0f, 1.0f, 2.0f, 9.0f, 7.0f, 8.0f}, {2, 3})}, [](Builder&, const Values& v) {
        const Values same = optimization_barrier({v[0], v[0]});
        const auto [values, indices] = top_k(same[1], 2);
        return Values{same[0], values, indices};
      });
  EXPECT_TRUE(is<float>(outputs[0], {3, 1, 2, 9, 7, 8}));
  EXPECT_TRUE(is<float>(outputs[1], {3, 2, 9, 8}));
  EXPECT_TRUE(is(outputs[2], {0, 2, 0, 2}));
}

TEST_F(StablehloControl, DonatedParameters) {
  Builder b("aliased");
  const Value x = b.parameter({ElementType::kF32, {4}});
  b.alias(0, 0);
  const auto executable = client->compile(b.finish({add(x, x)}), {});
  const pjrt::Buffer input = upload({1, 2, 3, 4}, {4});
  const pjrt::Buffer output = pjrt::PluginTest::run(*executable, {&input});
  EXPECT_EQ(download(output), (std::vector<float>{2, 4, 6, 8}));
  EXPECT_TRUE(input.is_deleted());
}

}  // namespace
}  // namespace torch_tpu::stablehlo
