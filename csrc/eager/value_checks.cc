#include "eager/value_checks.h"

#include <ATen/ops/one_hot.h>
#include <ATen/ops/one_hot_native.h>

#include <limits>
#include <unordered_map>

#include "eager/copy.h"
#include "eager/cpu_error.h"
#include "eager/device_storage.h"
#include "eager/mode.h"
#include "eager/trace.h"

namespace torch_tpu::eager {

namespace {

// A call's arguments by name.
class Arguments {
 public:
  Arguments(const OperatorInfo& info, std::span<const c10::IValue> values)
      : info_(info), values_(values) {}

  const c10::IValue& operator[](std::string_view name) const {
    static const c10::IValue none;
    for (size_t i = 0; i < values_.size(); ++i) {
      if (info_.arguments[i].name == name) return values_[i];
    }
    return none;
  }
  at::Tensor tensor(std::string_view name) const {
    const c10::IValue& value = (*this)[name];
    return value.isTensor() ? value.toTensor() : at::Tensor();
  }
  // Its values on the host; undefined where there are none to look at.
  at::Tensor host(std::string_view name) const { return on_host(tensor(name)); }
  static at::Tensor on_host(const at::Tensor& t) {
    if (!t.defined() || t.numel() == 0 || !t.has_storage()) return {};
    if (!is_tpu(t)) return t.device().is_cpu() ? t.detach() : at::Tensor();
    const runtime::DeviceBufferPtr buffer = device_storage(t).buffer();
    return buffer && !buffer->is_hollow() ? to_cpu(t) : at::Tensor();
  }

 private:
  const OperatorInfo& info_;
  const std::span<const c10::IValue> values_;
};

// The functions below say whether a call is suspicious.

// Whether an element is outside [low, high).
bool leaves(const at::Tensor& index, int64_t low, int64_t high) {
  return index.defined() && index.lt(low).logical_or_(index.ge(high)).any().item<bool>();
}

// Negative indices count from the end.
bool leaves(const at::Tensor& index, int64_t size) { return leaves(index, -size, size); }

int64_t size_along(const at::Tensor& t, int64_t dim) {
  if (t.dim() == 0) return 1;
  return t.size(c10::maybe_wrap_dim(dim, t.dim()));
}

// gather(self, dim, index) and its kin. Some allow negative indices, some do not: the CPU knows.
bool along_dimension(const Arguments& a) {
  const at::Tensor self = a.tensor("self");
  return leaves(a.host("index"), 0, size_along(self, a["dim"].toInt()));
}

// x[i, j, ...]
bool many_indices(const Arguments& a) {
  const at::Tensor self = a.tensor("self");
  int64_t dim = 0;
  for (const c10::IValue& entry : a["indices"].toListRef()) {
    const at::Tensor index = entry.isNone() ? at::Tensor() : entry.toTensor();
    const bool integer = index.defined() && at::isIntegralType(index.scalar_type(), false) &&
                         index.scalar_type() != at::kByte;
    if (index.defined() && !integer) return false;  // masks were turned into integers before
    if (dim >= self.dim()) return false;
    if (integer && leaves(Arguments::on_host(index), self.size(dim))) return true;
    ++dim;
  }
  return false;
}

// take, put: places among all elements.
bool in_all_elements(const Arguments& a) {
  return leaves(a.host("index"), a.tensor("self").numel());
}

bool rows(const at::Tensor& table, const at::Tensor& index) {
  return table.dim() > 0 && leaves(index, 0, table.size(0));
}
bool rows_of_weight(const Arguments& a) { return rows(a.tensor("weight"), a.host("indices")); }
bool rows_of_self(const Arguments& a) { return rows(a.tensor("self"), a.host("indices")); }

bool bags(const Arguments& a) {
  if (rows_of_weight(a)) return true;
  const at::Tensor offsets = a.host("offsets");
  if (!offsets.defined() || offsets.dim() != 1) return false;
  return offsets[0].item<int64_t>() != 0 ||
         offsets[-1].item<int64_t>() > a.tensor("indices").size(0);
}

// nll_loss and its kin: (classes) or (samples, classes, ...).
bool classes(const Arguments& a) {
  const at::Tensor self = a.tensor("self"), target = a.host("target");
  if (!target.defined() || self.dim() == 0) return false;
  at::Tensor wrong = target.lt(0).logical_or_(target.ge(self.size(self.dim() == 1 ? 0 : 1)));
  if (const c10::IValue& ignored = a["ignore_index"]; ignored.isInt()) {
    wrong.logical_and_(target.ne(ignored.toInt()));
  }
  return wrong.any().item<bool>();
}

// multilabel_margin_loss: -1 ends a list of labels.
bool labels(const Arguments& a) {
  const at::Tensor self = a.tensor("self");
  return self.dim() > 0 && leaves(a.host("target"), -1, self.size(-1));
}

bool unpooled(const Arguments& a) {
  int64_t volume = 1;
  for (const int64_t n : a["output_size"].toIntVector()) volume *= n;
  return leaves(a.host("indices"), 0, volume);
}

bool sorter(const Arguments& a) {
  const at::Tensor index = a.host("sorter");
  return index.defined() && index.dim() > 0 && leaves(index, 0, index.size(-1));
}

// masked_scatter: the mask chooses how many elements of the source it takes.
bool short_of_source(const Arguments& a) {
  const at::Tensor mask = a.tensor("mask"), self = a.tensor("self");
  if (!mask.defined() || !mask.numel() || mask.scalar_type() != at::kBool) return false;
  const at::Tensor host = a.host("mask");
  if (!host.defined()) return false;
  const int64_t repeats = std::max<int64_t>(1, self.numel() / mask.numel());
  return host.sum().item<int64_t>() * repeats > a.tensor("source").numel();
}

bool is_float(const at::Tensor& t) { return t.defined() && at::isFloatingType(t.scalar_type()); }

// NaN is outside too.
bool outside(const at::Tensor& t, double low, double high) {
  return is_float(t) && !t.ge(low).logical_and_(t.le(high)).all().item<bool>();
}
bool probabilities_self(const Arguments& a) { return outside(a.host("self"), 0, 1); }
bool probabilities_p(const Arguments& a) { return outside(a.host("p"), 0, 1); }
bool probabilities_both(const Arguments& a) {
  return probabilities_self(a) || outside(a.host("target"), 0, 1);
}
bool deviations(const Arguments& a) {
  const at::Tensor std = a.host("std");
  return is_float(std) && !std.ge(0).all().item<bool>();
}
bool rates(const Arguments& a) {
  return outside(a.host("self"), 0, std::numeric_limits<double>::infinity());
}
bool weights(const Arguments& a) {
  const at::Tensor self = a.host("self");
  if (!is_float(self) || self.dim() == 0) return false;
  return outside(self, 0, std::numeric_limits<double>::max()) ||
         self.sum(-1).le(0).any().item<bool>();
}

bool is_integer(const c10::IValue& value) {
  return value.isTensor() ? value.toTensor().defined() &&
                                at::isIntegralType(value.toTensor().scalar_type(), true)
                          : value.isInt() || value.isBool();
}
bool divisors(const Arguments& a) {
  const c10::IValue &self = a["self"], &other = a["other"];
  if (!is_integer(self) || !is_integer(other)) return false;
  if (other.isInt()) return other.toInt() == 0;
  if (other.isBool()) return !other.toBool();
  const at::Tensor host = a.host("other");
  return host.defined() && host.eq(0).any().item<bool>();
}
bool divisors_if_rounded(const Arguments& a) {
  return a["rounding_mode"].isString() && divisors(a);
}

using Suspicion = bool (*)(const Arguments&);

// Operators, without an in-place variant's underscore, and what makes a call suspicious. Whether
// it is wrong, the CPU says.
const std::unordered_map<std::string_view, Suspicion>& suspicions() {
  static const std::unordered_map<std::string_view, Suspicion> table{
      {"aten::gather", along_dimension},
      {"aten::scatter", along_dimension},
      {"aten::scatter_add", along_dimension},
      {"aten::scatter_reduce", along_dimension},
      {"aten::index_select", along_dimension},
      {"aten::index_add", along_dimension},
      {"aten::index_copy", along_dimension},
      {"aten::index_fill", along_dimension},
      {"aten::index_reduce", along_dimension},
      {"aten::index", many_indices},
      {"aten::_unsafe_index", many_indices},
      {"aten::index_put", many_indices},
      {"aten::_index_put_impl", many_indices},
      {"aten::take", in_all_elements},
      {"aten::put", in_all_elements},
      {"aten::embedding", rows_of_weight},
      {"aten::embedding_renorm", rows_of_self},
      {"aten::_embedding_bag", bags},
      {"aten::_embedding_bag_forward_only", bags},
      {"aten::nll_loss_forward", classes},
      {"aten::nll_loss_backward", classes},
      {"aten::nll_loss2d_forward", classes},
      {"aten::nll_loss2d_backward", classes},
      {"aten::multi_margin_loss", classes},
      {"aten::multilabel_margin_loss_forward", labels},
      {"aten::max_unpool2d", unpooled},
      {"aten::max_unpool3d", unpooled},
      {"aten::searchsorted", sorter},
      {"aten::masked_scatter", short_of_source},
      {"aten::bernoulli", probabilities_self},
      {"aten::multinomial", weights},
      {"aten::normal", deviations},
      {"aten::poisson", rates},
      {"aten::binary_cross_entropy", probabilities_both},
      {"aten::floor_divide", divisors},
      {"aten::remainder", divisors},
      {"aten::fmod", divisors},
      {"aten::div", divisors_if_rounded},
  };
  return table;
}

Suspicion suspicion_of(const OperatorInfo& info) {
  std::string_view name = info.name;
  if (name.ends_with('_')) name.remove_suffix(1);
  if (name == "aten::bernoulli" && info.overload != "" && info.overload != "out") {
    return info.overload.starts_with("Tensor") ? probabilities_p : nullptr;
  }
  const auto it = suspicions().find(name);
  return it == suspicions().end() ? nullptr : it->second;
}

at::Tensor one_hot(const at::Tensor& self, int64_t num_classes) {
  if (!Trace::current() && current_mode() == EagerMode::kDeferNeverAndLaunchBlocking) {
    const at::Tensor host = Arguments::on_host(self);
    const int64_t end = num_classes < 0 ? std::numeric_limits<int64_t>::max() : num_classes;
    if (leaves(host, 0, end)) static_cast<void>(at::one_hot(host, num_classes));
  }
  return at::native::one_hot(self, num_classes);
}

}  // namespace

void check_values(const OperatorInfo& info, const c10::OperatorHandle& op,
                  std::span<const c10::IValue> arguments) {
  const Suspicion suspicious = suspicion_of(info);
  if (suspicious && suspicious(Arguments(info, arguments))) {
    throw_as_cpu_does(op, arguments, StandIn::kSameValues);
  }
}

void register_value_checks(torch::Library& aten) { aten.impl("one_hot", TORCH_FN(one_hot)); }

}  // namespace torch_tpu::eager
