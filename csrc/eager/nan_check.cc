#include "eager/nan_check.h"

#include <ATen/ops/isfinite.h>
#include <ATen/ops/isnan.h>
#include <c10/core/ScalarTypeToTypeMeta.h>
#include <torch/csrc/autograd/node.h>

#include <sstream>
#include <unordered_set>

#include "eager/copy.h"
#include "eager/device_storage.h"

namespace torch_tpu::eager {

namespace {

std::vector<at::Tensor> tensors_in(const c10::IValue& value) {
  if (value.isTensor()) return {value.toTensor()};
  if (value.isTensorList()) return value.toTensorVector();
  std::vector<at::Tensor> out;
  if (value.isOptionalTensorList()) {
    for (const auto& t : value.toOptionalTensorVector()) {
      if (t) out.push_back(*t);
    }
  }
  return out;
}

bool has_such_values(const at::Tensor& t) {
  if (!t.defined() || !t.has_storage() || t.numel() == 0) return false;
  if (!at::isFloatingType(t.scalar_type()) && !at::isComplexType(t.scalar_type())) return false;
  if (!is_tpu(t)) return t.device().is_cpu();
  const runtime::DeviceBufferPtr buffer = device_storage(t).buffer();
  return buffer && !buffer->is_hollow();
}

at::Tensor on_host(const at::Tensor& t) {
  const at::Tensor host = is_tpu(t) ? to_cpu(t) : t.detach();
  return c10::isFloat8Type(host.scalar_type()) ? host.to(at::kFloat) : host;
}

struct Count {
  int64_t nan = 0;
  int64_t infinite = 0;
  bool matters(const NanCheck& wanted) const {
    return nan > 0 || (wanted.infinities && infinite > 0);
  }
};

Count count(const at::Tensor& t) {
  if (!has_such_values(t)) return {};
  const at::Tensor host = on_host(t);
  const int64_t strange = host.numel() - at::isfinite(host).sum().item<int64_t>();
  if (strange == 0) return {};
  const int64_t nan = at::isnan(host).sum().item<int64_t>();
  return {nan, strange - nan};
}

bool is_strange(const c10::IValue& value, const NanCheck& wanted) {
  const auto strange = [&](double x) {
    return std::isnan(x) || (wanted.infinities && std::isinf(x));
  };
  if (value.isDouble()) return strange(value.toDouble());
  if (value.isComplexDouble()) {
    const c10::complex<double> z = value.toComplexDouble();
    return strange(z.real()) || strange(z.imag());
  }
  if (value.isDoubleList()) {
    for (const double x : value.toDoubleVector()) {
      if (strange(x)) return true;
    }
    return false;
  }
  if (value.isList() && !value.isTensorList()) {
    for (const c10::IValue& entry : value.toListRef()) {
      if (is_strange(entry, wanted)) return true;
    }
    return false;
  }
  for (const at::Tensor& t : tensors_in(value)) {
    if (count(t).matters(wanted)) return true;
  }
  return false;
}

void describe(std::ostream& out, const at::Tensor& t) {
  out << c10::getDtypeNames(t.scalar_type()).first << t.sizes();
}

}  // namespace

NanWatch::NanWatch(const OperatorInfo& info, std::span<const c10::IValue> arguments,
                   NanCheck wanted)
    : info_(info), arguments_(arguments), wanted_(wanted), looked_at_(arguments.size(), false) {
  std::unordered_set<const void*> written;
  const auto storage_of = [](const at::Tensor& t) -> const void* {
    return t.defined() && t.has_storage() ? t.storage().unsafeGetStorageImpl() : nullptr;
  };
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!info.arguments[i].written) continue;
    for (const at::Tensor& t : tensors_in(arguments[i])) written.insert(storage_of(t));
  }
  written.erase(nullptr);
  if (written.empty()) return;
  for (size_t i = 0; i < arguments.size() && finite_before_; ++i) {
    if (!is_input(i)) continue;
    for (const at::Tensor& t : tensors_in(arguments[i])) {
      if (written.contains(storage_of(t))) looked_at_[i] = true;
    }
    if (looked_at_[i]) finite_before_ = !is_strange(arguments[i], wanted_);
  }
}

bool NanWatch::is_input(size_t i) const { return !info_.arguments[i].is_out; }

bool NanWatch::inputs_were_finite() const {
  for (size_t i = 0; i < arguments_.size(); ++i) {
    if (is_input(i) && !looked_at_[i] && is_strange(arguments_[i], wanted_)) return false;
  }
  return true;
}

std::string NanWatch::describe_inputs() const {
  std::ostringstream out;
  const char* separator = "";
  for (size_t i = 0; i < arguments_.size(); ++i) {
    if (!is_input(i)) continue;
    const bool is_list = !arguments_[i].isTensor();
    size_t place = 0;
    for (const at::Tensor& t : tensors_in(arguments_[i])) {
      const size_t at = place++;
      if (!t.defined()) continue;
      out << separator << info_.arguments[i].name;
      if (is_list) out << '[' << at << ']';
      out << ' ';
      describe(out, t);
      separator = ", ";
    }
  }
  return out.tellp() == 0 ? "none" : out.str();
}

void NanWatch::look_at(std::span<const c10::IValue> returns) const {
  if (!finite_before_) return;
  std::vector<std::pair<std::string, at::Tensor>> results;
  const auto add = [&](const std::string& name, const c10::IValue& value) {
    for (const at::Tensor& t : tensors_in(value)) results.emplace_back(name, t);
  };
  for (size_t i = 0; i < returns.size(); ++i) {
    if (i < info_.returns.size() && info_.returns[i].alias >= 0) continue;  // a written argument
    add(returns.size() == 1 ? "result" : "result " + std::to_string(i), returns[i]);
  }
  for (size_t i = 0; i < arguments_.size(); ++i) {
    if (info_.arguments[i].written) add(info_.arguments[i].name, arguments_[i]);
  }
  for (const auto& [name, tensor] : results) {
    const Count found = count(tensor);
    if (!found.matters(wanted_)) continue;
    if (!inputs_were_finite()) return;
    std::ostringstream message;
    message << info_.qualified() << ": " << name << ' ';
    describe(message, tensor);
    message << " has " << found.nan << " NaN and " << found.infinite << " infinite of "
            << tensor.numel() << " elements, its inputs had none: " << describe_inputs();
    if (const auto node = torch::autograd::get_current_node()) {
      message << "; in the backward of " << node->name();
    }
    message << ". (torch.tpu.debug.check_nan() is on)";
    if (wanted_.action == NanCheck::Action::kWarn) {
      TORCH_WARN(message.str());
      return;
    }
    TORCH_CHECK(false, message.str());
  }
}

}  // namespace torch_tpu::eager
