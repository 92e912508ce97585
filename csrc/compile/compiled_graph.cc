#include "compile/compiled_graph.h"

#include <ATen/ops/_to_copy.h>

#include <algorithm>
#include <unordered_map>

#include "eager/compile_program.h"
#include "eager/device_context.h"
#include "eager/dry_run.h"
#include "eager/explain.h"
#include "eager/program_outputs.h"
#include "eager/program_trace.h"
#include "eager/scalar_types.h"
#include "runtime/compile_service.h"

namespace torch_tpu::compile {

namespace sh = stablehlo;
using eager::Program;

namespace {

at::Tensor to_device(const at::Tensor& t, int device) {
  return at::_to_copy(
      t, t.options().device(c10::Device(eager::kTpu, static_cast<c10::DeviceIndex>(device))));
}

// A change of one is seen in the other's version, which autograd compares with that of what it
// saved.
void share_version(c10::TensorImpl& impl, const at::Tensor& same) {
  if (!impl.is_inference() && !same.is_inference()) {
    impl.set_version_counter(same.unsafeGetTensorImpl()->version_counter());
  }
}

}  // namespace

CompiledGraph::CompiledGraph(std::string name, Body body, Values constants,
                             std::vector<bool> on_host, pjrt::Options options)
    : name_(std::move(name)),
      body_(std::move(body)),
      on_host_(std::move(on_host)),
      options_(std::move(options)),
      constants_(std::move(constants)) {}

size_t CompiledGraph::num_programs() const {
  const std::lock_guard lock(mutex_);
  return known_.size();
}

std::vector<runtime::CompiledProgramPtr> CompiledGraph::programs() const {
  std::vector<runtime::CompiledProgramPtr> out;
  const std::lock_guard lock(mutex_);
  for (const SpecializationPtr& s : known_) {
    if (s->program->executable) out.push_back(s->program->executable);
  }
  return out;
}

CompiledGraph::SpecializationPtr CompiledGraph::find(std::span<const uint64_t> key) const {
  const std::lock_guard lock(mutex_);
  for (const SpecializationPtr& s : known_) {
    if (std::equal(s->key.begin(), s->key.end(), key.begin(), key.end())) return s;
  }
  return nullptr;
}

CompiledGraph::SpecializationPtr CompiledGraph::specialize(const Values& inputs,
                                                           size_t num_constants,
                                                           const eager::CallState& state) const {
  auto out = std::make_shared<Specialization>();
  out->key = state.key;
  Program program;
  const eager::PrecisionCode precision = state.precision();
  eager::ProgramTrace trace(program, state, precision);
  Values given;
  given.reserve(inputs.size());
  for (const c10::IValue& value : inputs) given.push_back(trace.stand_in(value));
  Values results;
  {
    const eager::TraceGuard guard(trace);
    results = body_(given);
  }
  eager::ProgramOutputs outputs(program, trace.builder(), state);
  std::unordered_map<const c10::StorageImpl*, uint32_t> places;
  for (const c10::IValue& value : results) {
    Result r;
    if (!value.isTensor() || !value.toTensor().defined()) {
      r.constant = value.isTensor() ? c10::IValue() : value;
      out->results.push_back(std::move(r));
      continue;
    }
    const at::Tensor& t = value.toTensor();
    TORCH_CHECK(eager::is_tpu(t), name_, ": expected results on the device, got one on ",
                t.device());
    r.form = TensorForm(t);
    const auto same =
        std::find_if(given.begin(), given.end() - static_cast<std::ptrdiff_t>(num_constants),
                     [&](const c10::IValue& g) { return g.isTensor() && g.toTensor().is_same(t); });
    if (same != given.end() - static_cast<std::ptrdiff_t>(num_constants)) {
      r.kind = Result::Kind::kGiven;
      r.storage = static_cast<uint32_t>(same - given.begin());
    } else if (const int slot = trace.slot_of(t); slot >= 0) {
      r.kind = Result::Kind::kInput;
      r.storage = static_cast<uint32_t>(slot);
    } else {
      r.kind = Result::Kind::kNew;
      const c10::StorageImpl* const impl = t.storage().unsafeGetStorageImpl();
      const auto [it, added] = places.emplace(impl, static_cast<uint32_t>(out->storages.size()));
      r.storage = it->second;
      if (added) {
        NewStorage storage{-1, t.storage().nbytes()};
        eager::DeviceStorage& device_storage = eager::device_storage(t);
        if (device_storage.contents().filled()) {
          storage.output = outputs.add(trace.base(device_storage));
        }
        out->storages.push_back(storage);
      }
    }
    out->results.push_back(std::move(r));
  }
  for (const auto& [storage, value] : trace.writes()) {
    outputs.write(state.find_slot(*storage), value);
  }
  program.random_count = trace.random_count();
  if (trace.builder().float32_products_asked()) {
    program.precision = precision;
    eager::notice_precision(precision);
  }
  if (!outputs.values().empty()) {
    if (!options_.empty()) runtime::check_options(options_);
    program.executable =
        eager::compile_program(trace.builder().finish(outputs.values()), name_, options_);
  }
  out->program = std::make_shared<const Program>(std::move(program));
  return out;
}

CompiledGraph::Values CompiledGraph::bind(const Specialization& specialization,
                                          const eager::CallState& state, eager::BufferList buffers,
                                          const Values& inputs, const Copies& copies) const {
  std::vector<at::Tensor> made(specialization.storages.size());
  // Of each slot, a tensor that has the storage.
  std::vector<const at::Tensor*> owners;
  const auto owner = [&](uint32_t slot) -> const at::Tensor& {
    if (owners.empty()) {
      owners.resize(state.storages.size());
      for (const c10::IValue& value : inputs) {
        if (!value.isTensor() || !value.toTensor().defined()) continue;
        const int place = state.find_slot(eager::device_storage(value.toTensor()));
        owners[static_cast<size_t>(place)] = &value.toTensor();
      }
    }
    return *owners[slot];
  };
  Values out;
  out.reserve(specialization.results.size());
  for (size_t i = 0; i < specialization.results.size(); ++i) {
    const Result& r = specialization.results[i];
    if (r.kind == Result::Kind::kConstant) {
      out.push_back(r.constant);
      continue;
    }
    const bool on_host = i < on_host_.size() && on_host_[i];
    if (r.kind == Result::Kind::kGiven) {
      at::Tensor t = inputs[r.storage].toTensor();
      if (on_host) {
        const auto copy = std::find_if(copies.begin(), copies.end(),
                                       [&](const auto& c) { return c.second.is_same(t); });
        t = copy != copies.end() ? copy->first : t.cpu();
      }
      out.emplace_back(std::move(t));
      continue;
    }
    at::Tensor t;
    if (r.kind == Result::Kind::kNew && !made[r.storage].defined()) {
      const NewStorage& storage = specialization.storages[r.storage];
      t = r.form.over_new_storage(
          storage.output < 0 ? nullptr : std::move(buffers[static_cast<size_t>(storage.output)]),
          storage.nbytes, state.device);
      made[r.storage] = t;
    } else {
      const at::Tensor& same = r.kind == Result::Kind::kNew ? made[r.storage] : owner(r.storage);
      t = r.form.over(same.storage());
      share_version(*t.unsafeGetTensorImpl(), same);
    }
    if (on_host) t = t.cpu();
    out.emplace_back(std::move(t));
  }
  return out;
}

CompiledGraph::Values CompiledGraph::inside(Values inputs) {
  const auto check = [&](const c10::IValue& value) {
    if (value.isTensor() && value.toTensor().defined() && !eager::is_tpu(value.toTensor())) {
      throw eager::TraceAborted(name_ + " takes a tensor on the CPU");
    }
  };
  {
    const std::lock_guard lock(mutex_);
    inputs.insert(inputs.end(), constants_.begin(), constants_.end());
  }
  for (const c10::IValue& value : inputs) check(value);
  if (std::find(on_host_.begin(), on_host_.end(), true) != on_host_.end()) {
    throw eager::TraceAborted(name_ + " gives a tensor on the CPU");
  }
  return body_(inputs);
}

CompiledGraph::Values CompiledGraph::operator()(Values inputs) {
  if (eager::Trace::current()) return inside(std::move(inputs));
  int device = -1;
  bool host = false;
  for (const c10::IValue& value : inputs) {
    if (!value.isTensor() || !value.toTensor().defined()) continue;
    if (!eager::is_tpu(value.toTensor())) {
      host = true;
    } else if (device < 0) {
      device = value.toTensor().device().index();
    }
  }
  if (device < 0) device = eager::current_device();
  Copies copies;
  if (host) {
    for (c10::IValue& value : inputs) {
      if (!value.isTensor() || !value.toTensor().defined()) continue;
      const at::Tensor t = value.toTensor();
      if (eager::is_tpu(t)) continue;
      copies.emplace_back(t, to_device(t, device));
      value = copies.back().second;
    }
  }
  const size_t num_given = inputs.size();
  if (!constants_.empty()) {
    const std::lock_guard lock(mutex_);
    for (c10::IValue& value : constants_) {
      c10::IValue moved = value;
      if (value.isTensor() && !eager::is_tpu(value.toTensor())) {
        moved = to_device(value.toTensor(), device);
        if (!eager::DryRun::current()) value = moved;  // there it holds no data
      }
      inputs.push_back(std::move(moved));
    }
  }
  const eager::ScopedCallState state;
  eager::gather_values(inputs, *state);
  SpecializationPtr specialization = find(state->key);
  const bool known = specialization != nullptr;
  if (!known) {
    specialization = specialize(inputs, inputs.size() - num_given, *state);
    const std::lock_guard lock(mutex_);
    known_.insert(known_.begin(), specialization);
  }
  eager::BufferList buffers;
  if (specialization->program->executable) {
    if (eager::explaining() && !eager::DryRun::current()) [[unlikely]] {
      eager::explain_compiled(name_, known, specialization->program->executable);
    }
    eager::launch(specialization->program, *state, buffers);
  }
  Values out = bind(*specialization, *state, std::move(buffers), inputs, copies);
  for (const auto& [original, copy] : copies) {
    const int slot = state->find_slot(eager::device_storage(copy));
    const auto& written = specialization->program->outputs;
    if (std::any_of(written.begin(), written.end(),
                    [&](const Program::Output& o) { return o.slot == slot; })) {
      original.copy_(copy);
    }
  }
  return out;
}

}  // namespace torch_tpu::compile
