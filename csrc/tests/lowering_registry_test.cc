// Finding rules, and what a rule sees of a call.
#include <gtest/gtest.h>

#include "lowering/registry.h"

namespace torch_tpu::lowering {
namespace {

Rule named(const std::string& name) {
  return [name](Call&) -> Values { throw Unsupported(name); };
}

std::string found(const Registry& registry, std::string_view name, std::string_view overload) {
  const RuleEntry* entry = registry.find(name, overload);
  if (!entry) return "";
  Builder builder;
  Call call(builder, std::string(name), std::string(overload));
  try {
    entry->rule(call);
  } catch (const Unsupported& e) {
    return e.what();
  }
  return "?";
}

TEST(RegistryTest, TheMostSpecificNameComesFirst) {
  Registry registry;
  registry.add("aten::max", named("max"));
  registry.add("aten::max.dim", named("max.dim"));
  registry.add("aten::relu_", named("relu_"));
  registry.add("aten::relu", named("relu"));
  EXPECT_EQ(found(registry, "aten::max", ""), "max");
  EXPECT_EQ(found(registry, "aten::max", "dim"), "max.dim");
  EXPECT_EQ(found(registry, "aten::max", "other"), "max");
  EXPECT_EQ(found(registry, "aten::max_", ""), "max");
  EXPECT_EQ(found(registry, "aten::max_", "dim"), "max.dim");
  EXPECT_EQ(found(registry, "aten::relu_", ""), "relu_");
  EXPECT_EQ(found(registry, "aten::relu", "out"), "relu");
  EXPECT_EQ(found(registry, "aten::min", ""), "");
  EXPECT_EQ(found(registry, "aten::max__", ""), "") << "not an in-place name";
}

TEST(RegistryTest, RefusesASecondRule) {
  Registry registry;
  registry.add("aten::max", named("1"));
  EXPECT_THROW(registry.add("aten::max", named("2")), std::logic_error);
}

TEST(RegistryTest, TheWholeOneIsThere) {
  const Registry& all = Registry::instance();
  EXPECT_GT(all.entries().size(), 400u);
  for (const auto& [name, entry] : all.entries()) {
    EXPECT_NE(name.find("::"), std::string::npos) << name;
    EXPECT_TRUE(entry.rule) << name;
  }
  EXPECT_NE(all.find("aten::add_", "Tensor"), nullptr);
}

TEST(CallTest, Numbers) {
  Builder b;
  Call call(b, "aten::op", "");
  call.set("known", Number{ElementType::kF64, 2.5, std::nullopt, {}});
  call.set("integer", Number{ElementType::kS64, 9007199254740993.0, 9007199254740993, {}});
  call.set("operand", Number{ElementType::kF64, std::nullopt, std::nullopt,
                             b.parameter({ElementType::kF64, {}})});
  call.set("count", int64_t{3});
  call.set("flag", true);
  call.set("none", std::monostate{});
  EXPECT_EQ(call.known_number("known"), 2.5);
  EXPECT_EQ(call.integer("integer"), 9007199254740993);
  EXPECT_EQ(call.known_number("operand"), std::nullopt);
  EXPECT_EQ(call.known_number("count"), 3);
  EXPECT_EQ(call.known_number("absent"), std::nullopt);
  EXPECT_TRUE(call.is_known("flag", 1));
  EXPECT_FALSE(call.is_known("operand", 0));
  EXPECT_EQ(call.number("operand", ElementType::kF32).dtype(), ElementType::kF32);
  EXPECT_EQ(call.number("known", ElementType::kS32).dtype(), ElementType::kS32);
  EXPECT_EQ(call.number_type("flag"), ElementType::kPred);
  EXPECT_FALSE(call.has("none"));
  EXPECT_TRUE(call.has("flag"));
  EXPECT_EQ(call.integer_or("none", 7), 7);
  EXPECT_EQ(call.ints("count"), Dims{3});
  EXPECT_EQ(call.ints("absent"), Dims{});
  EXPECT_THROW(call.tensor("known"), Unsupported);
  EXPECT_THROW(call.integer("known"), Unsupported);
  EXPECT_THROW(call.rng_state(1), Unsupported);
  EXPECT_THROW(call.output(0), Unsupported);
}

TEST(CallTest, Dimensions) {
  EXPECT_EQ(wrap_dim(-1, 3), 2);
  EXPECT_EQ(wrap_dim(0, 0), 0);
  EXPECT_EQ(wrap_dim(-1, 0), 0);
  EXPECT_EQ(wrap_dims({}, 2), (Dims{0, 1}));
  EXPECT_EQ(wrap_dims({-1, 0}, 3), (Dims{0, 2}));
  EXPECT_EQ(wrap_dims({0}, 0), Dims{});
  try {
    wrap_dim(3, 3);
    ADD_FAILURE() << "3 is not a dimension";
  } catch (const InvalidArgument& e) {
    EXPECT_EQ(e.kind, InvalidArgument::Kind::kIndex);
    EXPECT_STREQ(e.what(),
                 "Dimension out of range (expected to be in range of [-3, 2], but got 3)");
  }
}

}  // namespace
}  // namespace torch_tpu::lowering
