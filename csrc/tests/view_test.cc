// Views of a base, read and written by programs, against element-by-element addressing.
#include "lowering/view.h"

#include <random>
#include <set>

#include "stablehlo_test_support.h"

namespace torch_tpu::lowering {
namespace {

using stablehlo::Builder;
using stablehlo::Dims;
using stablehlo::ElementType;
using stablehlo::HostTensor;
using stablehlo::TensorType;
using stablehlo::Value;
using stablehlo::Values;

HostTensor counting(const Dims& dims, int32_t start = 0) {
  HostTensor host{{ElementType::kS32, dims}, ""};
  for (int64_t i = 0; i < host.type.numel(); ++i) {
    const int32_t value = start + static_cast<int32_t>(i);
    host.bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  return host;
}

// The places in memory of the view's elements, in row-major order of the view.
std::vector<int64_t> addresses(const ViewSpec& view) {
  std::vector<int64_t> out{view.offset};
  for (size_t d = 0; d < view.sizes.size(); ++d) {
    std::vector<int64_t> next;
    for (const int64_t at : out) {
      for (int64_t i = 0; i < view.sizes[d]; ++i) next.push_back(at + i * view.strides[d]);
    }
    out = std::move(next);
  }
  return out;
}

class ViewTest : public stablehlo::ExecutionTest {
 protected:
  struct Programs {
    std::string read, write;  // their text
  };

  // Reads the view of a counting base, then writes negative numbers through it.
  Programs check(const Dims& base_dims, const ViewSpec& view) const {
    SCOPED_TRACE("base " + stablehlo::to_string(base_dims) + " sizes " +
                 stablehlo::to_string(view.sizes) + " strides " +
                 stablehlo::to_string(view.strides) + " offset " + std::to_string(view.offset));
    const HostTensor base = counting(base_dims);
    const HostTensor update = counting(view.sizes, -1000);
    Programs programs;
    const auto outputs = run({base, update}, [&](Builder&, const Values& v) {
      return Values{read_view(v[0], view), write_view(v[0], view, v[1])};
    });
    {
      Builder b("read");
      programs.read = b.finish({read_view(b.parameter(base.type), view)});
    }
    {
      Builder b("write");
      const Value to = b.parameter(base.type), from = b.parameter(update.type);
      programs.write = b.finish({write_view(to, view, from)});
    }

    const std::vector<int64_t> places = addresses(view);
    std::vector<int32_t> wanted;
    for (const int64_t place : places) wanted.push_back(static_cast<int32_t>(place));
    EXPECT_EQ(outputs[0].as<int32_t>(), wanted);

    std::vector<int32_t> memory = base.as<int32_t>();
    const std::vector<int32_t> updates = update.as<int32_t>();
    const std::set<int64_t> distinct(places.begin(), places.end());
    if (distinct.size() == places.size()) {
      for (size_t i = 0; i < places.size(); ++i) {
        memory[static_cast<size_t>(places[i])] = updates[i];
      }
      EXPECT_EQ(outputs[1].as<int32_t>(), memory);
    } else {
      // Which of several elements in one place is kept is open; the others must not change.
      const std::vector<int32_t> written = outputs[1].as<int32_t>();
      for (size_t i = 0; i < memory.size(); ++i) {
        if (!distinct.contains(static_cast<int64_t>(i))) {
          EXPECT_EQ(written[i], memory[i]);
        }
      }
    }
    EXPECT_EQ(outputs[1].type, base.type);
    return programs;
  }

  static bool has(const std::string& text, const std::string& op) {
    return text.find("stablehlo." + op) != std::string::npos;
  }
};

ViewSpec view(Dims sizes, Dims strides, int64_t offset = 0) {
  return {ElementType::kS32, std::move(sizes), std::move(strides), offset};
}

TEST_F(ViewTest, Identity) {
  const Programs programs = check({2, 3}, view({2, 3}, {3, 1}));
  EXPECT_FALSE(has(programs.read, "reshape") || has(programs.read, "slice"));
  check({}, view({}, {}));
  check({2, 1, 3}, view({2, 1, 3}, {3, 77, 1}));
}

// Boxes of the base: slices and transpositions, which compilers see through.
TEST_F(ViewTest, BoxesNeedNoGather) {
  const std::vector<std::pair<Dims, ViewSpec>> boxes = {
      {{4, 6}, view({2, 6}, {6, 1}, 6)},           // rows
      {{4, 6}, view({4, 2}, {6, 1}, 3)},           // columns
      {{4, 6}, view({6, 4}, {1, 6})},              // transposed
      {{4, 6}, view({2, 3}, {12, 2}, 1)},          // steps
      {{4, 6}, view({4}, {6}, 2)},                 // a column
      {{4, 6}, view({}, {}, 13)},                  // an element
      {{24}, view({2, 3, 4}, {12, 4, 1})},         // split
      {{2, 3, 4}, view({24}, {1})},                // merged
      {{2, 3, 4}, view({6}, {2}, 12)},             // merged, steps
      {{2, 3, 4}, view({4, 2, 3}, {1, 12, 4})},    // permuted
      {{4, 6}, view({3, 4, 5}, {0, 6, 0}, 1)},     // repeated
      {{4, 6}, view({1, 4, 1, 6}, {5, 6, 9, 1})},  // dimensions of one
      {{4, 4}, view({4}, {5})},                    // the diagonal
      {{4, 4}, view({3}, {5}, 1)},                 // beside it
      {{2, 8}, view({2, 3}, {8, 3}, 1)},           // steps that leave a rest
  };
  for (const auto& [base, spec] : boxes) {
    const Programs programs = check(base, spec);
    EXPECT_FALSE(has(programs.read, "gather") || has(programs.read, "\"stablehlo.gather"));
    EXPECT_FALSE(has(programs.write, "scatter") || has(programs.write, "\"stablehlo.scatter"));
  }
}

TEST_F(ViewTest, OthersAreGathered) {
  check({12}, view({5, 4}, {2, 1}));       // overlapping windows
  check({12}, view({3, 3}, {2, 2}, 1));    // equal strides
  check({3, 5}, view({2, 3}, {4, 3}, 2));  // across rows
  check({20}, view({2, 3}, {7, 3}, 1));    // gaps of no common measure
  check({3, 5}, view({5, 3}, {1, 4}));     // a slanted transposition
  check({4, 4}, view({2, 2, 2}, {1, 5, 0}, 2));
}

TEST_F(ViewTest, Nothing) {
  check({4, 6}, view({0, 6}, {6, 1}));
  check({0, 3}, view({3, 0}, {1, 3}));
  check({4, 6}, view({2, 0, 3}, {1, 1, 1}, 5));
}

TEST_F(ViewTest, Arbitrary) {
  std::mt19937 random(5);
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  for (int round = 0; round < 60; ++round) {
    Dims base;
    for (int d = pick(0, 3); d > 0; --d) base.push_back(pick(1, 5));
    const int64_t numel = stablehlo::product(base);
    ViewSpec spec = view({}, {}, pick(0, static_cast<int>(numel) - 1));
    int64_t reach = spec.offset;
    for (int d = pick(0, 3); d > 0; --d) {
      const int64_t size = pick(1, 4), stride = pick(0, 7);
      if (reach + (size - 1) * stride >= numel) continue;
      reach += (size - 1) * stride;
      spec.sizes.push_back(size);
      spec.strides.push_back(stride);
    }
    check(base, spec);
  }
}

// The same program, wherever the view starts.
TEST_F(ViewTest, Moving) {
  const Dims base{4, 6};
  const std::vector<ViewSpec> views = {
      view({6}, {1}, 12),
      view({4}, {6}, 5),
      view({2, 3}, {6, 1}, 7),
      view({3, 2}, {1, 12}, 3),
      view({2, 2}, {12, 3}, 1),
      view({}, {}, 17),
      view({2, 1, 3}, {0, 6, 2}, 6),
      view({2, 6}, {6, 1}, 12),
  };
  for (const ViewSpec& spec : views) {
    SCOPED_TRACE(stablehlo::to_string(spec.sizes) + " " + stablehlo::to_string(spec.strides));
    const std::optional<BaseBox> box = base_box(base, spec.sizes, spec.strides, spec.offset);
    ASSERT_TRUE(box);
    const auto wanted =
        run({counting(base), counting(spec.sizes, -99)}, [&](Builder&, const Values& v) {
          return Values{read_view(v[0], spec), write_view(v[0], spec, v[1])};
        });
    const auto given = run({counting(base), counting(spec.sizes, -99),
                            stablehlo::tensor<int32_t>({static_cast<int32_t>(box->start[0])}, {}),
                            stablehlo::tensor<int32_t>({static_cast<int32_t>(box->start[1])}, {})},
                           [&](Builder&, const Values& v) {
                             const Values start{v[2], v[3]};
                             ViewSpec elsewhere = spec;
                             elsewhere.offset = 0;
                             return Values{read_moving_view(v[0], elsewhere, *box, start),
                                           write_moving_view(v[0], elsewhere, *box, start, v[1])};
                           });
    EXPECT_EQ(given[0].as<int32_t>(), wanted[0].as<int32_t>());
    EXPECT_EQ(given[1].as<int32_t>(), wanted[1].as<int32_t>());
  }
}

TEST(BaseBoxTest, StartsAndRoom) {
  const std::optional<BaseBox> box = base_box(Dims{4, 1, 6}, Dims{2, 3}, Dims{12, 2}, 7);
  ASSERT_TRUE(box);
  EXPECT_EQ(box->start[0], 1);
  EXPECT_EQ(box->start[2], 1);
  EXPECT_EQ(box->span[0], 3);
  EXPECT_EQ(box->step[0], 2);
  EXPECT_EQ(box->span[2], 5);
  EXPECT_EQ(box->view_dim[1], -1);
  EXPECT_TRUE(box->moves(0) && box->moves(2) && !box->moves(1));
}

TEST(BaseBoxTest, Refuses) {
  EXPECT_FALSE(base_box(Dims{4, 6}, Dims{3}, Dims{1}, 4)) << "over the edge of a row";
  EXPECT_FALSE(base_box(Dims{4, 6}, Dims{2, 2}, Dims{1, 2}, 0)) << "two along one dimension";
  EXPECT_FALSE(base_box(Dims{4, 6}, Dims{3}, Dims{7}, 0)) << "a diagonal";
  EXPECT_FALSE(base_box(Dims{0, 6}, Dims{0}, Dims{1}, 0)) << "nothing";
  EXPECT_FALSE(base_box(Dims(9, 2), Dims{2}, Dims{1}, 0)) << "many dimensions";
}

TEST_F(ViewTest, OtherDtypes) {
  const HostTensor base = stablehlo::tensor<int32_t>({0x01020304, 0x05060708, -1, 0}, {2, 2});
  const auto read = [&](ElementType type, Dims sizes, Dims strides, int64_t offset) {
    return run1({base}, [&](const Values& v) {
      return read_view(v[0], {type, std::move(sizes), std::move(strides), offset});
    });
  };
  EXPECT_TRUE(is<uint8_t>(read(ElementType::kU8, {4}, {1}, 0), {4, 3, 2, 1}));
  EXPECT_TRUE(is<uint8_t>(read(ElementType::kU8, {2, 2}, {8, 1}, 1), {3, 2, 255, 255}));
  EXPECT_TRUE(is<int16_t>(read(ElementType::kS16, {2}, {1}, 2), {0x0708, 0x0506}));
  EXPECT_TRUE(is<int64_t>(read(ElementType::kS64, {2}, {1}, 0), {0x0506070801020304, 0xffffffff}));
  EXPECT_TRUE(is<uint32_t>(read(ElementType::kU32, {}, {}, 2), {0xffffffffu}));

  const HostTensor bytes = stablehlo::tensor<uint8_t>({9, 8}, {2});
  const HostTensor written = run1({base, bytes}, [](const Values& v) {
    return write_view(v[0], {ElementType::kU8, {2}, {4}, 1}, v[1]);
  });
  EXPECT_TRUE(is<int32_t>(written, {0x01020904, 0x05060808, -1, 0}));
}

TEST_F(ViewTest, BytesBehindTheLastElementStay) {
  const HostTensor base = stablehlo::tensor<uint8_t>({1, 0, 2, 0, 7}, {5});
  const HostTensor halves = stablehlo::tensor<int16_t>({5}, {1});
  EXPECT_TRUE(is<int16_t>(
      run1({base},
           [](const Values& v) { return read_view(v[0], {ElementType::kS16, {2}, {1}, 0}); }),
      {1, 2}));
  EXPECT_TRUE(is<uint8_t>(run1({base, halves},
                               [](const Values& v) {
                                 return write_view(v[0], {ElementType::kS16, {1}, {1}, 1}, v[1]);
                               }),
                          {1, 0, 5, 0, 7}));
}

TEST_F(ViewTest, ComplexParts) {
  using C = std::complex<float>;
  const HostTensor base = stablehlo::tensor<C>({C(1, 2), C(3, 4)}, {2});
  const HostTensor parts = stablehlo::tensor<float>({-1, -2}, {2});
  EXPECT_TRUE(is<float>(
      run1({base},
           [](const Values& v) { return read_view(v[0], {ElementType::kF32, {2}, {2}, 1}); }),
      {2, 4}));
  const HostTensor written = run1({base, parts}, [](const Values& v) {
    return write_view(v[0], {ElementType::kF32, {2}, {2}, 1}, v[1]);
  });
  EXPECT_EQ(written.as<C>(), (std::vector<C>{C(1, -1), C(3, -2)}));
  const HostTensor joined = run1(
      {parts}, [](const Values& v) { return read_view(v[0], {ElementType::kC64, {1}, {1}, 0}); });
  EXPECT_EQ(joined.as<C>(), (std::vector<C>{C(-1, -2)}));
}

TEST_F(ViewTest, BoolsAreBytes) {
  const HostTensor base = stablehlo::tensor<bool>({true, false, true}, {3});
  EXPECT_TRUE(is<uint8_t>(
      run1({base},
           [](const Values& v) { return read_view(v[0], {ElementType::kU8, {3}, {1}, 0}); }),
      {1, 0, 1}));
}

TEST(DenseOrder, Contiguous) {
  EXPECT_EQ(dense_order(Dims{2, 3}, Dims{3, 1}), (Dims{0, 1}));
  EXPECT_EQ(dense_order(Dims{}, Dims{}), Dims{});
  EXPECT_EQ(dense_order(Dims{2, 1, 3}, Dims{3, 1, 1}), (Dims{0, 1, 2}));
}

TEST(DenseOrder, ChannelsLast) {
  EXPECT_EQ(dense_order(Dims{2, 3, 4, 5}, Dims{60, 1, 15, 3}), (Dims{0, 2, 3, 1}));
}

TEST(DenseOrder, NotDense) {
  EXPECT_FALSE(dense_order(Dims{2, 3}, Dims{6, 2}));  // gaps
  EXPECT_FALSE(dense_order(Dims{2, 3}, Dims{0, 1}));  // repeated
  EXPECT_FALSE(dense_order(Dims{2, 3}, Dims{1, 1}));  // overlapping
}

TEST(DenseOrder, NothingIsDense) { EXPECT_EQ(dense_order(Dims{2, 0}, Dims{7, 9}), (Dims{0, 1})); }

TEST(IsIdentity, SizesOfOneHaveNoStride) {
  EXPECT_TRUE(is_identity({ElementType::kS32, {2, 1}}, view({2, 1}, {1, 9})));
  EXPECT_FALSE(is_identity({ElementType::kS32, {2, 3}}, view({2, 3}, {3, 1}, 1)));
  EXPECT_FALSE(is_identity({ElementType::kU32, {2, 3}}, view({2, 3}, {3, 1})));
  EXPECT_FALSE(is_identity({ElementType::kS32, {3, 2}}, view({2, 3}, {3, 1})));
}

}  // namespace
}  // namespace torch_tpu::lowering
