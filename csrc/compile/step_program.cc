#include "compile/step_program.h"

#include <algorithm>
#include <bit>
#include <sstream>

#include "eager/device_context.h"
#include "eager/explain.h"
#include "eager/program_trace.h"

namespace torch_tpu::compile {

namespace sh = stablehlo;
using eager::Program;

namespace {

eager::NumberOperand number_of(sh::ElementType type, double value) {
  if (type == sh::ElementType::kF64) return {type, {std::bit_cast<uint64_t>(value), 0}};
  return {type, {std::bit_cast<uint32_t>(static_cast<float>(value)), 0}};
}

}  // namespace

bool has_device_storage(const at::Tensor& t) {
  return eager::is_tpu(t) && t.has_storage() && t.key_set().has(c10::DispatchKey::PrivateUse1) &&
         !t.key_set().has(c10::DispatchKey::Python);
}

std::vector<uint64_t> gather_inputs(const std::vector<at::Tensor>& inputs,
                                    eager::CallState& state) {
  const std::vector<c10::IValue> values(inputs.begin(), inputs.end());
  eager::gather_values(values, state);
  std::vector<uint64_t> key = state.key;
  for (const at::Tensor& t : inputs) key.push_back(t.requires_grad());
  return key;
}

size_t StepProgram::num_donated() const {
  return static_cast<size_t>(std::count_if(program_->parameters.begin(), program_->parameters.end(),
                                           [](const auto& p) { return p.donated; }));
}

eager::DeviceStorage* StepProgram::storage_of(const Gradient& gradient) {
  const at::Tensor& t = gradient.of.grad();
  if (!t.defined() || !has_device_storage(t) || !gradient.form.is_of(t)) return nullptr;
  return &eager::device_storage(t);
}

bool StepProgram::has_parted() const {
  const auto buffer = [&](uint32_t slot) {
    const c10::Storage& storage = held_[slot - num_inputs_].storage;
    return eager::device_storage(*storage.unsafeGetStorageImpl()).buffer();
  };
  return std::any_of(same_.begin(), same_.end(),
                     [&](const Same& same) { return buffer(same.slot) != buffer(same.as); });
}

std::string StepProgram::why_not() const {
  if (has_parted()) {
    return "tensors of one element that had the same value, such as the step counts of an "
           "optimizer";
  }
  for (const Gradient& gradient : gradients_) {
    if (!storage_of(gradient)) {
      std::ostringstream sizes;
      sizes << gradient.of.sizes();
      return "the gradient of a tensor of " + sizes.str();
    }
  }
  for (const Held& held : held_) {
    if (held.gradient >= 0) continue;
    const eager::DeviceStorage& one = eager::device_storage(*held.storage.unsafeGetStorageImpl());
    if (held.layout != nullptr && one.contents().layout != held.layout) {
      return "how a tensor that the step uses is laid out on the device";
    }
  }
  return {};
}

bool StepProgram::add_held(eager::CallState& state) const {
  const size_t num_inputs = state.storages.size();
  for (const Held& held : held_) {
    eager::DeviceStorage* const storage =
        held.gradient >= 0 ? storage_of(gradients_[static_cast<size_t>(held.gradient)])
                           : &eager::device_storage(*held.storage.unsafeGetStorageImpl());
    if (!storage || storage->device() != device_) return false;
    const size_t slot = state.storages.size();
    if (!gradients_.empty()) {
      // Which tensors share memory is as it was.
      if (static_cast<size_t>(state.slot(*storage)) != slot) return false;
      if (held.layout == nullptr) state.contents[slot] = {};
    } else {
      const auto inputs_end = state.storages.begin() + static_cast<ptrdiff_t>(num_inputs);
      if (std::find(state.storages.begin(), inputs_end, storage) != inputs_end) return false;
      state.storages.push_back(storage);
      state.contents.push_back(held.layout ? storage->contents() : eager::Contents());
    }
    if (held.layout != nullptr && state.contents[slot].layout != held.layout) return false;
  }
  return std::all_of(gradients_.begin(), gradients_.end(), [&](const Gradient& gradient) {
    return storage_of(gradient) == state.storages[gradient.slot];
  });
}

std::optional<std::vector<at::Tensor>> StepProgram::run(
    const std::vector<at::Tensor>& inputs, const std::vector<double>& numbers,
    const std::optional<std::string>& new_because) const {
  const eager::ScopedCallState state;
  if (gather_inputs(inputs, *state) != key_ || numbers.size() != numbers_.size() ||
      !add_held(*state)) {
    return std::nullopt;
  }
  for (const Same& same : same_) {
    if (state->contents[same.slot].buffer != state->contents[same.as].buffer) return std::nullopt;
  }
  state->device = device_;
  for (size_t i = 0; i < numbers.size(); ++i) {
    state->numbers.push_back(number_of(numbers_[i], numbers[i]));
  }
  eager::BufferList buffers;
  if (program_->executable) {
    if (eager::explaining()) [[unlikely]] {
      eager::explain_compiled("a step of torch.tpu.compile_step", !new_because,
                              new_because.value_or(""), *program_);
    }
    eager::launch(program_, *state, buffers);
    for (const Same& same : same_) {
      if (same.written) state->storages[same.slot]->set(state->storages[same.as]->buffer());
    }
  }
  return bind(inputs, std::move(buffers));
}

std::vector<at::Tensor> StepProgram::bind(const std::vector<at::Tensor>& inputs,
                                          eager::BufferList buffers) const {
  std::vector<at::Tensor> made(new_storages_.size());
  std::vector<at::Tensor> out;
  out.reserve(results_.size());
  for (const Result& r : results_) {
    if (r.kind == Result::Kind::kHeld) {
      out.push_back(r.held);
      continue;
    }
    if (r.kind == Result::Kind::kGradient) {
      out.push_back(r.form.over(gradients_[r.storage].of.grad().storage()));
      continue;
    }
    at::Tensor t;
    if (r.kind == Result::Kind::kNew && !made[r.storage].defined()) {
      const NewStorage& storage = new_storages_[r.storage];
      t = r.form.over_new_storage(
          storage.output < 0 ? nullptr : std::move(buffers[static_cast<size_t>(storage.output)]),
          storage.nbytes, device_);
      if (storage.shared) made[r.storage] = t;
    } else {
      const at::Tensor& same = r.kind == Result::Kind::kNew ? made[r.storage] : inputs[r.storage];
      t = r.form.over(same.storage());
    }
    out.push_back(std::move(t));
  }
  return out;
}

}  // namespace torch_tpu::compile
