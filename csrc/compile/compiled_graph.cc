#include "compile/compiled_graph.h"

#include <ATen/ops/_to_copy.h>
#include <ATen/ops/item.h>

#include <algorithm>
#include <unordered_map>

#include "eager/compile_program.h"
#include "eager/device_context.h"
#include "eager/dry_run.h"
#include "eager/explain.h"
#include "eager/generator.h"
#include "eager/mode.h"
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

// The CPU tensor that `t` stands for, or a copy of `t`.
at::Tensor on_the_host(const at::Tensor& t,
                       const std::vector<std::pair<at::Tensor, at::Tensor>>& copies) {
  const auto copy = std::find_if(copies.begin(), copies.end(),
                                 [&](const auto& c) { return c.second.is_same(t); });
  return copy != copies.end() ? copy->first : t.cpu();
}

CompiledGraph::CallResults results_of(CompiledGraph::Values values) {
  CompiledGraph::CallResults results;
  results.reserve(values.size());
  for (c10::IValue& value : values) results.push_back({.value = std::move(value)});
  return results;
}

// Behind a program in which a loop has drawn random numbers, by what it says; waits for it.
void move_generator(int device, const runtime::DeviceBufferPtr& steps) {
  TensorForm number;
  number.dtype = at::kLong;
  const auto count = number.over_new_storage(steps, sizeof(int64_t), device).item<int64_t>();
  at::Generator generator = eager::default_generator(device);
  const std::lock_guard lock(generator.mutex());
  generator.set_offset(generator.get_offset() + static_cast<uint64_t>(count));
}

}  // namespace

CompiledGraph::CompiledGraph(std::string name, Body body, Values constants,
                             std::vector<bool> on_host, pjrt::Options options, std::string origin)
    : name_(std::move(name)),
      body_(std::move(body)),
      on_host_(std::move(on_host)),
      options_(std::move(options)),
      origin_(std::move(origin)),
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

std::string CompiledGraph::difference_to_nearest(const Specialization& specialization) const {
  const std::lock_guard lock(mutex_);
  if (known_.empty()) return origin_;
  GraphSignature::Difference nearest;
  for (const SpecializationPtr& s : known_) {
    GraphSignature::Difference difference = specialization.signature.from(s->signature);
    if (nearest.count == 0 || difference.count < nearest.count) nearest = std::move(difference);
  }
  return nearest.first;
}

CompiledGraph::SpecializationPtr CompiledGraph::specialize(const Values& inputs,
                                                           size_t num_constants,
                                                           const eager::CallState& state) const {
  auto out = std::make_shared<Specialization>(
      Specialization{.key = state.key,
                     .program = nullptr,
                     .storages = {},
                     .results = {},
                     .signature = GraphSignature(inputs, inputs.size() - num_constants, state)});
  Program program;
  const eager::PrecisionCode precision = state.precision();
  eager::ProgramTrace trace(program, state, precision);
  Values given;
  given.reserve(inputs.size());
  for (const c10::IValue& value : inputs) given.push_back(trace.stand_in(value));
  trace.random_source().may_follow = true;
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
        NewStorage storage{.output = -1, .nbytes = t.storage().nbytes()};
        eager::DeviceStorage& device_storage = eager::device_storage(t);
        if (device_storage.contents().filled()) {
          storage.output = outputs.add(trace.base(device_storage));
        }
        out->storages.push_back(storage);
      } else {
        out->storages[r.storage].shared = true;
      }
    }
    out->results.push_back(std::move(r));
  }
  for (const auto& [storage, value] : trace.writes()) {
    outputs.write(state.find_slot(*storage), value);
  }
  program.random_count = trace.random_count();
  if (const auto& random = trace.random_source(); random.first) {
    const sh::Value moved = sh::slice(sh::subtract(random.state, random.first), {1}, {2}, {1});
    out->random_output = outputs.add(sh::reshape(sh::convert(moved, sh::ElementType::kS64), {}));
  }
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

CompiledGraph::CallResults CompiledGraph::bind(const Specialization& specialization,
                                               const eager::CallState& state,
                                               eager::BufferList& buffers, const Values& inputs,
                                               const Copies& copies) const {
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
  CallResults out;
  out.reserve(specialization.results.size());
  for (size_t i = 0; i < specialization.results.size(); ++i) {
    const Result& r = specialization.results[i];
    if (r.kind == Result::Kind::kConstant) {
      out.push_back({.value = r.constant});
      continue;
    }
    const bool on_host = i < on_host_.size() && on_host_[i];
    if (r.kind == Result::Kind::kGiven) {
      const at::Tensor& t = inputs[r.storage].toTensor();
      if (on_host) {
        out.push_back({.value = on_the_host(t, copies)});
      } else if (!copies.empty()) {
        out.push_back({.value = t});
      } else {
        out.push_back({.value = {}, .input = static_cast<int>(r.storage)});
      }
      continue;
    }
    at::Tensor t;
    if (r.kind == Result::Kind::kNew && !made[r.storage].defined()) {
      const NewStorage& storage = specialization.storages[r.storage];
      t = r.form.over_new_storage(
          storage.output < 0 ? nullptr : std::move(buffers[static_cast<size_t>(storage.output)]),
          storage.nbytes, state.device);
      if (storage.shared) made[r.storage] = t;
    } else {
      const at::Tensor& same = r.kind == Result::Kind::kNew ? made[r.storage] : owner(r.storage);
      t = r.form.over(same.storage());
      share_version(t, same);
    }
    if (on_host) t = t.cpu();
    out.push_back({.value = std::move(t)});
  }
  return out;
}

CompiledGraph::Values CompiledGraph::inside(BorrowedValues inputs) {
  const auto check = [&](const c10::IValue& value) {
    if (value.isTensor() && value.toTensor().defined() && !eager::is_tpu(value.toTensor())) {
      throw eager::TraceAborted(name_ + " takes a tensor on the CPU");
    }
  };
  {
    const std::lock_guard lock(mutex_);
    for (const c10::IValue& value : constants_) inputs.add(value);
  }
  for (const c10::IValue& value : *inputs) check(value);
  if (std::find(on_host_.begin(), on_host_.end(), true) != on_host_.end()) {
    throw eager::TraceAborted(name_ + " gives a tensor on the CPU");
  }
  return body_(*inputs);
}

CompiledGraph::Values CompiledGraph::one_by_one(const Values& inputs, const Copies& copies) const {
  std::vector<int64_t> versions;
  for (const auto& [original, copy] : copies) versions.push_back(copy._version());
  Values results = body_(inputs);
  for (size_t i = 0; i < results.size(); ++i) {
    if (i >= on_host_.size() || !on_host_[i] || !results[i].isTensor()) continue;
    const at::Tensor t = results[i].toTensor();
    if (!t.defined()) continue;
    results[i] = on_the_host(t, copies);
  }
  for (size_t i = 0; i < copies.size(); ++i) {
    const auto& [original, copy] = copies[i];
    if (copy._version() != versions[i]) original.copy_(copy);
  }
  return results;
}

CompiledGraph::CallResults CompiledGraph::operator()(BorrowedValues inputs) {
  if (eager::Trace::current()) return results_of(inside(std::move(inputs)));
  int device = -1;
  bool host = false;
  for (const c10::IValue& value : *inputs) {
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
    for (size_t i = 0; i < inputs->size(); ++i) {
      const c10::IValue& value = (*inputs)[i];
      if (!value.isTensor() || !value.toTensor().defined()) continue;
      const at::Tensor t = value.toTensor();
      if (eager::is_tpu(t)) continue;
      copies.emplace_back(t, to_device(t, device));
      inputs.replace(i, copies.back().second);
    }
  }
  const size_t num_given = inputs->size();
  if (!constants_.empty()) {
    const std::lock_guard lock(mutex_);
    for (c10::IValue& value : constants_) {
      c10::IValue moved = value;
      if (value.isTensor() && !eager::is_tpu(value.toTensor())) {
        moved = to_device(value.toTensor(), device);
        if (!eager::DryRun::current()) value = moved;  // there it holds no data
      }
      inputs.add(std::move(moved));
    }
  }
  if (eager::checks_nan() && !eager::DryRun::current()) [[unlikely]] {
    return results_of(one_by_one(*inputs, copies));
  }
  const eager::ScopedCallState state;
  eager::gather_values(*inputs, *state);
  SpecializationPtr specialization = find(state->key);
  const bool known = specialization != nullptr;
  std::string difference;  // of a new one, while explaining
  if (!known) {
    specialization = specialize(*inputs, inputs->size() - num_given, *state);
    if (eager::explaining()) difference = difference_to_nearest(*specialization);
    const std::lock_guard lock(mutex_);
    known_.insert(known_.begin(), specialization);
  }
  eager::BufferList buffers;
  if (specialization->program->executable) {
    if (eager::explaining() && !eager::DryRun::current()) [[unlikely]] {
      eager::explain_compiled(name_, known, difference, *specialization->program);
    }
    eager::launch(specialization->program, *state, buffers);
  }
  if (specialization->random_output >= 0) {
    move_generator(state->device, buffers[static_cast<size_t>(specialization->random_output)]);
  }
  CallResults out = bind(*specialization, *state, buffers, *inputs, copies);
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
