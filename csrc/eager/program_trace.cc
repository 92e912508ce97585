#include "eager/program_trace.h"

namespace torch_tpu::eager {

namespace sh = stablehlo;

ProgramTrace::ProgramTrace(Program& program, const CallState& state, PrecisionCode precision)
    : Trace([this] {
        program_.parameters.push_back({Program::Parameter::Kind::kRandom, false, 0});
        return builder().parameter({sh::ElementType::kU64, {2}});
      }),
      program_(program),
      state_(state),
      stand_ins_(state.storages.size()),
      bases_(state.storages.size()) {
  builder().set_float32_products(float32_products(precision));
}

c10::IValue ProgramTrace::stand_in(const c10::IValue& value) {
  if (value.isTensor()) return stand_in(value.toTensor());
  if (value.isTensorList()) {
    std::vector<at::Tensor> out;
    for (const at::Tensor& t : value.toTensorVector()) out.push_back(stand_in(t));
    return out;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> out;
    for (const auto& t : value.toOptionalTensorVector()) {
      out.push_back(t && t->defined() ? std::optional<at::Tensor>(stand_in(*t)) : std::nullopt);
    }
    return out;
  }
  return value;
}

at::Tensor ProgramTrace::stand_in(const at::Tensor& t) {
  if (!is_tpu(t)) return t;
  const auto slot = static_cast<size_t>(state_.find_slot(device_storage(t)));
  if (!stand_ins_[slot]) {
    sh::Value base;
    if (state_.contents[slot].filled()) {
      program_.parameters.push_back(
          {Program::Parameter::Kind::kStorage, false, static_cast<uint32_t>(slot)});
      base = builder().parameter(state_.contents[slot].layout->type);
    }
    stand_ins_[slot] = placeholder(base, t).storage();
    bases_[slot] = base;
  }
  return over_storage(stand_ins_[slot], t);
}

int ProgramTrace::slot_of(const at::Tensor& tensor) const {
  for (size_t slot = 0; slot < stand_ins_.size(); ++slot) {
    if (stand_ins_[slot] && tensor.storage().is_alias_of(stand_ins_[slot])) {
      return static_cast<int>(slot);
    }
  }
  return -1;
}

std::vector<std::pair<DeviceStorage*, sh::Value>> ProgramTrace::writes() const {
  std::vector<std::pair<DeviceStorage*, sh::Value>> out;
  for (size_t slot = 0; slot < stand_ins_.size(); ++slot) {
    if (!stand_ins_[slot]) continue;
    const Contents now = device_storage(*stand_ins_[slot].unsafeGetStorageImpl()).contents();
    if (now.traced && !(now.traced == bases_[slot])) {
      out.emplace_back(state_.storages[slot], now.traced);
    }
  }
  return out;
}

at::Tensor over_storage(const c10::Storage& storage, const at::Tensor& like) {
  auto impl = c10::make_intrusive<c10::TensorImpl>(
      c10::Storage(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), like.dtype());
  impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  impl->_set_conj(like.is_conj());
  impl->_set_neg(like.is_neg());
  return at::Tensor(std::move(impl));
}

}  // namespace torch_tpu::eager
