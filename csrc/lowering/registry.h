// From ATen operator to lowering rule: the only place that knows operator names.
#pragma once

#include "lowering/call.h"

namespace torch_tpu::lowering {

// Returns the results in this order: the returned new tensors (lists flattened), then the mutated
// arguments in schema order (lists flattened). For an out= or in-place variant the mutated
// arguments are the results, so one rule serves `add`, `add_` and `add.out`. An empty Value for a
// mutated argument means "unchanged". Values are converted to the dtype of, and broadcast to the
// shape of, the tensor they go to.
using Rule = std::function<Values(Call&)>;

struct RuleOptions {
  // Number arguments that must be known while lowering (they choose the program's structure).
  // {"*"}: all of them.
  std::vector<std::string> known_numbers = {};
  // Arguments the kernel writes although the schema does not say so (batch norm's running
  // statistics); they follow the returned tensors.
  std::vector<std::string> mutates = {};
  // The results' types are the rule's own: PyTorch's meta kernel refuses calls its CPU kernel
  // takes.
  bool own_types = false;
  // Arguments that may be bytes, which PyTorch's meta kernel takes as int64 only.
  std::vector<std::string> bytes_as_int64 = {};
  // Without a meta kernel's word, results with as many dimensions as these arguments are laid out
  // channels-last when one of them is.
  std::vector<std::string> memory_format_of = {};
};

struct RuleEntry {
  Rule rule;
  RuleOptions options;
};

class Registry {
 public:
  // The registry with every family in it.
  static const Registry& instance();

  // `op` is "aten::add" (all overloads, and add_) or "aten::max.dim" (that overload alone, and
  // first in the search).
  void add(std::string op, Rule rule, RuleOptions options = {});
  // Looks for "name.overload", "name", then, for in-place names, the same without the trailing
  // underscore. nullptr when there is none.
  const RuleEntry* find(std::string_view name, std::string_view overload) const;
  const std::map<std::string, RuleEntry, std::less<>>& entries() const { return entries_; }

 private:
  std::map<std::string, RuleEntry, std::less<>> entries_;
};

}  // namespace torch_tpu::lowering
