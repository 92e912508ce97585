#include "compile/step_trace.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <map>

#include "compile/lowering_target.h"
#include "eager/compile_program.h"
#include "eager/device_context.h"
#include "eager/generator.h"
#include "eager/scalar_types.h"
#include "runtime/compile_service.h"
#include "runtime/runtime.h"

namespace torch_tpu::compile {

namespace sh = stablehlo;
using eager::Contents;
using eager::DeviceStorage;
using eager::Program;
using eager::TraceAborted;

StepTrace::StepTrace(std::vector<at::Tensor> inputs)
    : Trace([this] {
        program_.parameters.push_back({Program::Parameter::Kind::kRandom, false, 0});
        return builder().parameter({sh::ElementType::kU64, {2}});
      }),
      inputs_(std::move(inputs)),
      key_(gather_inputs(inputs_, state_)),
      num_inputs_(state_.storages.size()),
      storages_(num_inputs_),
      bases_(num_inputs_),
      generator_(eager::default_generator(state_.device)) {
  builder().set_float32_products(eager::float32_products(state_.precision()));
  builder().share_equal_operations();
}

lowering::Platform StepTrace::platform() const {
  return lowering_target().value_or(Trace::platform());
}

void StepTrace::begin() {
  TORCH_CHECK(!Trace::current(),
              "torch.tpu.compile_step: a step is called while another one, or a "
              "graph, is being traced");
  if (!began_) {
    seed_ = generator_.current_seed();
    first_offset_ = offset_ = generator_.get_offset();
    began_ = true;
  }
  guard_.emplace(*this);
}

void StepTrace::follow_backward() {
  const int backward = torch::autograd::get_current_graph_task_id();
  if (backward == backward_) return;
  backward_ = backward;
  last_before_backward_ = last_value_;
  for_recomputing_.clear();
}

sh::Value StepTrace::base(DeviceStorage& storage) {
  const sh::Value value = Trace::base(storage);
  follow_backward();
  // In a backward pass gradients are recorded only where a checkpoint computes a part of the
  // forward again. Without a barrier the compiler would find that it has been computed before, and
  // keep it.
  if (backward_ < 0 || !c10::GradMode::is_enabled() || value.id() > last_before_backward_) {
    return value;
  }
  sh::Value& again = for_recomputing_[value.id()];
  if (again) return again;
  // With what the backward pass has computed last, the gradient that has arrived at the checkpoint:
  // else it might be computed long before, and be kept from then on.
  sh::Values together{value};
  if (newest_ && newest_.id() > last_before_backward_) together.push_back(newest_);
  again = sh::optimization_barrier(together)[0];
  return again;
}

void StepTrace::before_call(std::span<const c10::IValue> arguments) {
  follow_backward();
  for (const c10::IValue& value : arguments) {
    if (value.isTensor()) {
      take_in(value.toTensor());
    } else if (value.isTensorList() || value.isOptionalTensorList()) {
      for (const c10::IValue& entry : value.toListRef()) {
        if (entry.isTensor()) take_in(entry.toTensor());
      }
    } else if (value.isGenerator() && value.toGenerator() != generator_) {
      throw TraceAborted("random numbers are drawn from a generator that is not the device's own");
    }
  }
}

void StepTrace::take_in(const at::Tensor& t) {
  if (!eager::is_tpu(t)) return;
  DeviceStorage& storage = eager::device_storage(t);
  const Contents contents = storage.contents();
  if (!contents.filled() || contents.traced) return;
  if (storage.device() != state_.device) {
    throw TraceAborted("tensors on several devices are used");
  }
  const auto slot = static_cast<size_t>(state_.slot(storage));
  if (slot >= storages_.size()) {
    storages_.resize(slot + 1);
    bases_.resize(slot + 1);
  }
  storages_[slot] = t.storage();
  made_.erase(storage.address());  // one that was made in the step and is gone had it
  if (may_share_.contains(&storage)) {
    const auto [known, is_new] = shared_.try_emplace(contents.buffer.get(), slot);
    if (!is_new) {
      same_as_.emplace(slot, known->second);
      bases_[slot] = bases_[known->second];
      storage.set_traced(bases_[slot]);
      return;
    }
  }
  program_.parameters.push_back(
      {Program::Parameter::Kind::kStorage, false, static_cast<uint32_t>(slot)});
  bases_[slot] = builder().parameter(contents.layout->type);
  storage.set_traced(bases_[slot]);
  last_value_ = std::max(last_value_, bases_[slot].id());
}

void StepTrace::write(DeviceStorage& storage, sh::Value value) {
  if (state_.find_slot(storage) < 0) made_.insert(storage.address());
  if (value.id() > last_value_) newest_ = value;
  last_value_ = std::max(last_value_, value.id());
  storage.set_traced(value);
}

void StepTrace::follow_generator() {
  if (generator_.current_seed() != seed_) {
    throw TraceAborted("the random state is set in the step");
  }
  const auto moved = static_cast<int64_t>(generator_.get_offset() - offset_);
  random_source().count += 4 * moved;
  offset_ = generator_.get_offset();
}

sh::Value StepTrace::random(int64_t count) {
  RandomSource& source = random_source();
  // In a region of the program the numbers are the region's own.
  if (source.state && !(source.state == random_state_)) return Trace::random(count);
  follow_generator();
  if (source.count < 0) throw TraceAborted("the random state is set in the step");
  const sh::Value state = Trace::random(count);
  random_state_ = source.state;
  generator_.set_offset(offset_ + static_cast<uint64_t>((count + 3) / 4));
  offset_ = generator_.get_offset();
  return state;
}

at::Tensor StepTrace::number_input(c10::ScalarType dtype) {
  program_.parameters.push_back(
      {Program::Parameter::Kind::kNumber, false, static_cast<uint32_t>(numbers_.size())});
  const sh::ElementType type = eager::to_element_type(dtype);
  numbers_.push_back(type);
  const sh::Value value = builder().parameter({type, {}});
  at::Tensor t =
      eager::make_tensor(nullptr, dtype, {}, {}, 0, c10::elementSize(dtype), state_.device);
  write(eager::device_storage(t), value);
  return t;
}

void StepTrace::share_equal(const std::vector<at::Tensor>& tensors) {
  // One element's bytes, its layout and the buffer that has it.
  std::map<std::pair<const runtime::Layout*, std::string>, runtime::DeviceBufferPtr> known;
  std::unordered_map<const runtime::DeviceBuffer*, runtime::DeviceBufferPtr> equal;
  for (const at::Tensor& t : tensors) {
    if (!has_device_storage(t) || t.storage().nbytes() != t.itemsize()) continue;
    DeviceStorage& storage = eager::device_storage(t);
    const Contents contents = storage.contents();
    if (!contents.buffer || contents.buffer->is_hollow() || storage.device() != state_.device ||
        state_.find_slot(storage) >= 0) {
      continue;
    }
    runtime::DeviceBufferPtr& same = equal[contents.buffer.get()];
    if (!same) {
      std::string bytes(t.itemsize(), '\0');
      runtime::Runtime::get().to_host(*contents.buffer, bytes.data());
      same = known.try_emplace({contents.layout, std::move(bytes)}, contents.buffer).first->second;
    }
    if (same != contents.buffer) storage.set(same);
    may_share_.insert(&storage);
  }
}

std::vector<at::Tensor> StepTrace::barrier(const std::vector<at::Tensor>& tensors) {
  Trace* const trace = Trace::current();
  TORCH_CHECK(trace, "barrier: expected to be called while a step is being traced");
  sh::Values values;
  for (const at::Tensor& t : tensors) {
    const c10::IValue argument(t);
    trace->before_call({&argument, 1});
    values.push_back(lowering::read_view(trace->base(eager::device_storage(t)), eager::view_of(t)));
  }
  values = sh::optimization_barrier(values);
  std::vector<at::Tensor> out;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& t = tensors[i];
    at::Tensor same =
        eager::make_tensor(nullptr, t.scalar_type(), t.sizes(), eager::row_major_strides(t.sizes()),
                           0, static_cast<size_t>(t.numel()) * t.itemsize(), t.device().index());
    trace->write(eager::device_storage(same), values[i]);
    out.push_back(std::move(same));
  }
  return out;
}

bool StepTrace::holds_value_of_this(const DeviceStorage& storage) const {
  const Contents contents = storage.contents();
  return contents.traced && &contents.traced.builder() == &const_cast<StepTrace*>(this)->builder();
}

bool StepTrace::made_here(const at::Tensor& t) const {
  if (!has_device_storage(t)) return false;
  const DeviceStorage& storage = eager::device_storage(t);
  return made_.contains(storage.address()) && holds_value_of_this(storage);
}

bool StepTrace::has_taken_in(const at::Tensor& t) const {
  if (!has_device_storage(t)) return false;
  const int slot = state_.find_slot(eager::device_storage(t));
  return slot >= 0 && bases_[static_cast<size_t>(slot)];
}

void StepTrace::add_gradients(const Gradients& gradients, StepProgram& out) const {
  for (const auto& [leaf, gradient] : gradients) {
    if (!has_taken_in(gradient)) continue;
    const int slot = state_.find_slot(eager::device_storage(gradient));
    out.gradients_.push_back({leaf, TensorForm(gradient), static_cast<uint32_t>(slot)});
  }
}

void StepTrace::add_result(const at::Tensor& t, StepProgram& out,
                           std::vector<const c10::StorageImpl*>& places) {
  TORCH_CHECK(eager::is_tpu(t),
              "torch.tpu.compile_step: expected results on the device, got one "
              "on ",
              t.device());
  StepProgram::Result r;
  r.form = TensorForm(t);
  DeviceStorage& storage = eager::device_storage(t);
  const int slot = state_.find_slot(storage);
  if (slot >= 0 && static_cast<size_t>(slot) < num_inputs_) {
    r.kind = StepProgram::Result::Kind::kInput;
    const auto owner = std::find_if(inputs_.begin(), inputs_.end(), [&](const at::Tensor& input) {
      return &eager::device_storage(input) == &storage;
    });
    r.storage = static_cast<uint32_t>(owner - inputs_.begin());
  } else if (const auto gradient =
                 std::find_if(out.gradients_.begin(), out.gradients_.end(),
                              [&](const auto& g) { return static_cast<int>(g.slot) == slot; });
             gradient != out.gradients_.end()) {
    r.kind = StepProgram::Result::Kind::kGradient;
    r.storage = static_cast<uint32_t>(gradient - out.gradients_.begin());
  } else if (slot >= 0 || (storage.contents().filled() && !holds_value_of_this(storage))) {
    r.kind = StepProgram::Result::Kind::kHeld;
    r.held = t;
  } else {
    const c10::StorageImpl* const impl = t.storage().unsafeGetStorageImpl();
    const auto it = std::find(places.begin(), places.end(), impl);
    r.storage = static_cast<uint32_t>(it - places.begin());
    if (it == places.end()) {
      places.push_back(impl);
      NewStorage fresh{.output = -1, .nbytes = t.storage().nbytes()};
      if (storage.contents().filled()) fresh.output = outputs_.add(base(storage));
      out.new_storages_.push_back(fresh);
    } else {
      out.new_storages_[r.storage].shared = true;
    }
  }
  out.results_.push_back(std::move(r));
}

std::shared_ptr<const StepProgram> StepTrace::finish(const std::vector<at::Tensor>& results,
                                                     const std::vector<at::Tensor>& kept,
                                                     const pjrt::Options& options, bool writes,
                                                     const Gradients& gradients) {
  pause();
  follow_generator();
  const auto out = std::make_shared<StepProgram>();
  std::vector<const c10::StorageImpl*> places;
  add_gradients(gradients, *out);
  for (const at::Tensor& t : results) add_result(t, *out, places);
  for (size_t slot = 0; slot < storages_.size(); ++slot) {
    if (!bases_[slot]) continue;
    const sh::Value now = writes ? base(*state_.storages[slot]) : bases_[slot];
    const auto same = same_as_.find(slot);
    if (same != same_as_.end()) {
      const size_t first = same->second;
      const bool stays_same = !writes || now == base(*state_.storages[first]);
      const bool changes = !(now == bases_[slot]);
      out->same_.push_back(
          {static_cast<uint32_t>(slot), static_cast<uint32_t>(first), stays_same && changes});
      if (stays_same) continue;
    }
    if (!(now == bases_[slot])) outputs_.write(static_cast<int>(slot), now);
  }
  for (size_t slot = num_inputs_; slot < storages_.size(); ++slot) {
    out->held_.push_back({storages_[slot], state_.contents[slot].layout});
  }
  for (size_t i = 0; i < out->gradients_.size(); ++i) {
    const size_t slot = out->gradients_[i].slot;
    if (slot < num_inputs_) continue;
    StepProgram::Held& held = out->held_[slot - num_inputs_];
    held.storage = {};
    held.gradient = static_cast<int>(i);
  }
  for (const at::Tensor& t : kept) {
    if (!made_here(t)) continue;
    DeviceStorage& storage = eager::device_storage(t);
    kept_.push_back(t);
    const auto slot = static_cast<int>(num_inputs_ + out->held_.size());
    out->held_.push_back({t.storage(), nullptr});
    outputs_.add(base(storage), slot);
    storage.clear();  // several may share it
  }
  const int64_t count = random_source().count;
  program_.random_count = std::max<int64_t>(count, 0);
  if (builder().float32_products_asked()) {
    program_.precision = state_.precision();
    eager::notice_precision(program_.precision);
  }
  if (!outputs_.values().empty()) {
    if (!options.empty()) runtime::check_options(options);
    program_.executable = eager::compile_program(builder().finish(outputs_.values()),
                                                 "a step of torch.tpu.compile_step", options);
  }
  out->device_ = state_.device;
  out->num_inputs_ = num_inputs_;
  out->key_ = std::move(key_);
  out->numbers_ = std::move(numbers_);
  out->program_ = std::make_shared<const Program>(std::move(program_));
  return out;
}

void StepTrace::end() {
  guard_.reset();
  if (!began_) return;
  began_ = false;
  if (generator_.current_seed() != seed_) generator_.set_current_seed(seed_);
  generator_.set_offset(first_offset_);
  for (size_t slot = 0; slot < storages_.size(); ++slot) {
    if (bases_[slot]) state_.storages[slot]->restore(std::move(state_.contents[slot]));
  }
  storages_.clear();
  bases_.clear();
  state_.clear();
  for (const uintptr_t address : made_) {
    DeviceStorage* const storage = eager::storage_at(address);
    if (storage && holds_value_of_this(*storage)) storage->clear();
  }
  made_.clear();
}

}  // namespace torch_tpu::compile
