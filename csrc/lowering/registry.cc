#include "lowering/registry.h"

#include "lowering/families.h"

namespace torch_tpu::lowering {

const Registry& Registry::instance() {
  static const Registry registry = [] {
    Registry r;
    register_pointwise(r);
    register_activation(r);
    register_loss(r);
    register_reduction(r);
    register_scan(r);
    register_sorting(r);
    register_normalization(r);
    register_matmul(r);
    register_convolution(r);
    register_pooling(r);
    register_resampling(r);
    register_attention(r);
    register_recurrent(r);
    register_indexing(r);
    register_nonzero(r);
    register_copy(r);
    register_shape(r);
    register_creation(r);
    register_random(r);
    register_foreach(r);
    register_linalg(r);
    return r;
  }();
  return registry;
}

void Registry::add(std::string op, Rule rule, RuleOptions options) {
  const auto [it, inserted] =
      entries_.try_emplace(std::move(op), RuleEntry{std::move(rule), std::move(options)});
  if (!inserted) throw std::logic_error("Registry::add: a second rule for " + it->first);
}

const RuleEntry* Registry::find(std::string_view name, std::string_view overload) const {
  const auto look = [&](std::string_view base) -> const RuleEntry* {
    if (!overload.empty()) {
      const auto it = entries_.find(std::string(base) + "." + std::string(overload));
      if (it != entries_.end()) return &it->second;
    }
    const auto it = entries_.find(base);
    return it == entries_.end() ? nullptr : &it->second;
  };
  if (const RuleEntry* entry = look(name)) return entry;
  if (name.ends_with('_') && !name.ends_with("__")) {
    return look(name.substr(0, name.size() - 1));
  }
  return nullptr;
}

}  // namespace torch_tpu::lowering
