#include "compile/step_program.h"

#include <algorithm>
#include <bit>

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

std::string StepProgram::why_not() const {
  const auto storage = [&](uint32_t slot) -> const eager::DeviceStorage& {
    return eager::device_storage(*held_[slot - num_inputs_].storage.unsafeGetStorageImpl());
  };
  for (const Same& same : same_) {
    if (storage(same.slot).buffer() != storage(same.as).buffer()) {
      return "tensors of one element that had the same value, such as the step counts of an "
             "optimizer";
    }
  }
  for (const Held& held : held_) {
    const eager::DeviceStorage& one = eager::device_storage(*held.storage.unsafeGetStorageImpl());
    if (held.layout != nullptr && one.contents().layout != held.layout) {
      return "how a tensor that the step uses is laid out on the device";
    }
  }
  return {};
}

std::optional<std::vector<at::Tensor>> StepProgram::run(
    const std::vector<at::Tensor>& inputs, const std::vector<double>& numbers,
    const std::optional<std::string>& new_because) const {
  const eager::ScopedCallState state;
  if (gather_inputs(inputs, *state) != key_ || numbers.size() != numbers_.size()) {
    return std::nullopt;
  }
  const size_t num_inputs = state->storages.size();
  for (const Held& held : held_) {
    eager::DeviceStorage& storage = eager::device_storage(*held.storage.unsafeGetStorageImpl());
    for (size_t i = 0; i < num_inputs; ++i) {
      if (state->storages[i] == &storage) return std::nullopt;
    }
    state->storages.push_back(&storage);
    if (held.layout == nullptr) {
      state->contents.emplace_back();
      continue;
    }
    state->contents.push_back(storage.contents());
    if (state->contents.back().layout != held.layout) return std::nullopt;
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
