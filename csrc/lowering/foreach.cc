// `_foreach_<op>`: a list of calls of <op> in one program. Element i is lowered by the rule of
// the plain op, with element i of each list argument and the other arguments as they are.
#include "lowering/foreach.h"

#include "lowering/expression.h"
#include "lowering/families.h"

namespace torch_tpu::lowering {

namespace {

// What an argument of the foreach op is called in the plain op.
struct Renamed {
  std::string_view list_name;
  std::string_view element_name;
};
using Renaming = std::vector<Renamed>;

Argument element(const Argument& argument, size_t i) {
  if (const auto* list = std::get_if<std::vector<TensorArgument>>(&argument)) return list->at(i);
  if (const auto* list = std::get_if<std::vector<Number>>(&argument)) return list->at(i);
  return argument;
}

size_t list_length(const Call& call, const Renaming& renaming) {
  for (const Renamed& name : renaming) {
    const Argument* argument = call.find(name.list_name);
    const auto* list = argument ? std::get_if<std::vector<TensorArgument>>(argument) : nullptr;
    if (list) return list->size();
  }
  throw Unsupported(call.op() + "." + call.overload() + ": no argument is a list of tensors");
}

Rule for_each(std::string element_op, Renaming renaming) {
  return [element_op = std::move(element_op), renaming = std::move(renaming)](Call& call) {
    const RuleEntry* entry = Registry::instance().find(element_op, "");
    if (!entry) throw Unsupported(call.op() + ": there is no rule for " + element_op);
    const size_t length = list_length(call, renaming);
    Values results;
    for (size_t i = 0; i < length; ++i) {
      Call one(call.builder(), element_op, "");
      for (const Renamed& name : renaming) {
        const Argument* argument = call.find(name.list_name);
        if (!argument) continue;
        one.set(std::string(name.element_name), element(*argument, i));
      }
      if (call.num_outputs() == length) one.set_outputs({call.output(i)});
      const Values values = entry->rule(one);
      if (values.size() != 1) throw Unsupported(call.op() + ": more than one result an element");
      results.push_back(values.front());
    }
    return results;
  };
}

constexpr std::string_view kUnary[] = {
    "abs",   "acos",       "asin",  "atan",  "ceil",  "cos",    "cosh",    "erf",
    "erfc",  "exp",        "expm1", "floor", "frac",  "lgamma", "log",     "log10",
    "log1p", "log2",       "neg",   "round", "rsqrt", "sign",   "sigmoid", "sin",
    "sinh",  "reciprocal", "sqrt",  "tan",   "tanh",  "trunc",  "max",
};

constexpr std::string_view kBinary[] = {"add", "sub", "mul", "div", "maximum", "minimum"};

Renaming binary_names(std::string_view second) {
  return {{"self", "self"},
          {"other", second},
          {"scalar", second},
          {"scalars", second},
          {"alpha", "alpha"}};
}

// self = src; the driver converts.
Values copy_rule(Call& call) { return call.tensors("src"); }

Values clone_rule(Call& call) { return call.tensors("self"); }

Values zero_rule(Call& call) {
  Values results;
  for (const Value v : call.tensors("self")) results.push_back(constant_like(v, 0.0));
  return results;
}

}  // namespace

void register_foreach(Registry& r) {
  const auto add = [&r](std::string_view op, std::string_view element_op, Renaming renaming,
                        RuleOptions options = {}) {
    r.add("aten::_foreach_" + std::string(op),
          for_each("aten::" + std::string(element_op), std::move(renaming)), std::move(options));
  };
  for (const std::string_view op : kUnary) add(op, op, {{"self", "self"}});
  for (const std::string_view op : kBinary) add(op, op, binary_names("other"));
  add("clamp_min", "clamp_min", binary_names("min"));
  add("clamp_max", "clamp_max", binary_names("max"));
  add("pow", "pow", {{"self", "self"}, {"exponent", "exponent"}}, {.known_numbers = {"exponent"}});
  add("lerp", "lerp",
      {{"self", "self"}, {"tensors1", "end"}, {"weights", "weight"}, {"weight", "weight"}});
  for (const std::string_view op : {"addcmul", "addcdiv"}) {
    add(op, op,
        {{"self", "self"},
         {"tensor1", "tensor1"},
         {"tensor2", "tensor2"},
         {"value", "value"},
         {"scalars", "value"}});
  }
  add("norm", "linalg_vector_norm", {{"self", "self"}, {"ord", "ord"}, {"dtype", "dtype"}},
      {.known_numbers = {"ord"}});
  add("mm", "mm", {{"self", "self"}, {"mat2", "mat2"}});
  r.add("aten::_foreach_copy", copy_rule);
  r.add("aten::_foreach_clone", clone_rule);
  r.add("aten::_foreach_zero", zero_rule);
  register_fused_optimizers(r);
  register_amp(r);
}

}  // namespace torch_tpu::lowering
