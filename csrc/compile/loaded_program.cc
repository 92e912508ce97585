#include "compile/loaded_program.h"

#include <cstddef>

#include "eager/copy.h"
#include "eager/device_context.h"
#include "eager/dry_run.h"
#include "eager/scalar_types.h"
#include "runtime/runtime.h"
#include "runtime/statistics.h"

namespace torch_tpu::compile {

using eager::Program;

namespace {

stablehlo::TensorType array_type(const LoadedProgram::Type& type) {
  return {eager::to_element_type(type.dtype), type.sizes};
}

size_t nbytes_of(const LoadedProgram::Type& type) {
  return runtime::intern_layout(array_type(type))->nbytes;
}

// As Python has it: "float32".
std::string_view name_of(c10::ScalarType dtype) { return c10::getDtypeNames(dtype).first; }

// Whether two tensors lie in a storage at places that may be the same.
bool overlap(const at::Tensor& a, const at::Tensor& b) {
  if (!a.storage().is_alias_of(b.storage()) || a.numel() == 0 || b.numel() == 0) return false;
  const auto begin = [](const at::Tensor& t) {
    return t.storage_offset() * static_cast<int64_t>(t.element_size());
  };
  const auto end = [&](const at::Tensor& t) {
    int64_t last = 0;
    for (int64_t i = 0; i < t.dim(); ++i) last += (t.size(i) - 1) * t.stride(i);
    return begin(t) + (last + 1) * static_cast<int64_t>(t.element_size());
  };
  return begin(a) < end(b) && begin(b) < end(a);
}

}  // namespace

LoadedProgram::LoadedProgram(std::string name, std::string_view bytes, std::vector<Type> inputs,
                             std::vector<std::string> names, const std::vector<Type>& outputs,
                             std::span<const Write> writes, int64_t random_count)
    : name_(std::move(name)),
      inputs_(std::move(inputs)),
      names_(std::move(names)),
      outputs_(outputs) {
  TORCH_CHECK(names_.size() == inputs_.size(), name_, ": expected a name for each of ",
              inputs_.size(), " inputs, got ", names_.size());
  Program program;
  for (size_t i = 0; i < inputs_.size(); ++i) {
    // A slot for each, though two may be views of one storage.
    program.parameters.push_back(
        {Program::Parameter::Kind::kStorage, false, static_cast<uint32_t>(i)});
  }
  for (const Type& type : outputs_) {
    const runtime::Layout* const layout = runtime::intern_layout(array_type(type));
    program.outputs.push_back({layout, -1});
    program.output_bytes += layout->nbytes;
  }
  for (const auto& [output, input] : writes) {
    program.outputs.at(output).slot = static_cast<int>(input);
    program.parameters.at(input).donated = nbytes_of(inputs_[input]) > 0;
  }
  if (random_count > 0) {
    program.parameters.push_back({Program::Parameter::Kind::kRandom, false, 0});
    program.random_count = random_count;
  }
  std::shared_ptr<pjrt::Executable> executable =
      runtime::Runtime::get().client().deserialize(bytes);
  TORCH_CHECK(executable->num_outputs() == outputs_.size(), "[aot] expected a program of ",
              outputs_.size(), " outputs, the plugin found ", executable->num_outputs());
  runtime::statistics().loads.fetch_add(1, std::memory_order_relaxed);
  program.executable = std::make_shared<runtime::CompiledProgram>(std::string(), name_);
  program.executable->set(std::move(executable), bytes.size(), 0);
  program_ = std::make_shared<const Program>(std::move(program));
}

at::Tensor LoadedProgram::fit(size_t place, const at::Tensor& input, int device) const {
  const Type& type = inputs_[place];
  TORCH_CHECK(input.scalar_type() == type.dtype && input.sizes() == type.sizes, name_,
              ": expected ", names_[place], " (input ", place, ") to be ", name_of(type.dtype),
              at::IntArrayRef(type.sizes), ", got ", name_of(input.scalar_type()), input.sizes());
  TORCH_CHECK(input.layout() == at::kStrided && (eager::is_tpu(input) || input.is_cpu()), name_,
              ": expected ", names_[place], " (input ", place,
              ") to be a dense tensor on tpu or cpu, got one of layout ", input.layout(), " on ",
              input.device());
  if (eager::is_tpu(input)) {
    TORCH_CHECK(input.device().index() == device, name_, ": expected all inputs on tpu:", device,
                ", got ", names_[place], " (input ", place, ") on ", input.device());
    const eager::Contents contents = eager::device_storage(input).contents();
    if (contents.filled() && contents.layout->type == array_type(type) && input.is_contiguous() &&
        input.storage_offset() == 0 && !input.is_conj() && !input.is_neg()) {
      return input;
    }
  }
  const auto strides = eager::row_major_strides(type.sizes);
  runtime::DeviceBufferPtr nothing;  // which no copy would put there
  if (input.numel() == 0) {
    const runtime::Layout* const layout = runtime::intern_layout(array_type(type));
    const std::byte none{};
    nothing = eager::DryRun::current() ? eager::DryRun::unknown(layout, device)
                                       : runtime::Runtime::get().to_device(&none, layout, device);
  }
  at::Tensor fitting = eager::make_tensor(std::move(nothing), type.dtype, type.sizes, strides, 0,
                                          nbytes_of(type), device);
  if (input.numel() == 0) return fitting;
  if (!eager::is_tpu(input)) {
    eager::copy_(fitting, input, /*non_blocking=*/false);
  } else {
    eager::copy_on_device(fitting, input);
  }
  return fitting;
}

void LoadedProgram::check_written(const std::vector<at::Tensor>& inputs) const {
  for (const Program::Output& output : program_->outputs) {
    if (output.slot < 0) continue;
    const auto written = static_cast<size_t>(output.slot);
    for (size_t i = 0; i < inputs.size(); ++i) {
      TORCH_CHECK(i == written || !overlap(inputs[i], inputs[written]), name_, ": expected ",
                  names_[written], " (input ", written,
                  "), which the program writes, to share no memory with another input, ",
                  "got memory of ", names_[i], " (input ", i, "); pass a copy of one of them");
    }
  }
}

std::vector<at::Tensor> LoadedProgram::operator()(const std::vector<at::Tensor>& inputs) const {
  TORCH_CHECK(inputs.size() == inputs_.size(), name_, ": expected ", inputs_.size(),
              " inputs, got ", inputs.size());
  check_written(inputs);
  int device = -1;
  for (const at::Tensor& t : inputs) {
    if (device < 0 && eager::is_tpu(t)) device = t.device().index();
  }
  if (device < 0) device = eager::current_device();
  std::vector<at::Tensor> fitting;
  fitting.reserve(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) fitting.push_back(fit(i, inputs[i], device));
  const eager::ScopedCallState state;
  state->clear();
  state->device = device;
  for (const at::Tensor& t : fitting) {
    eager::DeviceStorage& storage = eager::device_storage(t);
    state->storages.push_back(&storage);
    state->contents.push_back(storage.contents());
  }
  eager::BufferList buffers;
  eager::launch(program_, *state, buffers);
  std::vector<at::Tensor> outputs;
  outputs.reserve(outputs_.size());
  for (size_t i = 0; i < outputs_.size(); ++i) {
    if (const int slot = program_->outputs[i].slot; slot >= 0) {
      const auto place = static_cast<size_t>(slot);
      at::Tensor written = inputs[place];
      if (!written.is_same(fitting[place])) written.copy_(fitting[place]);
      outputs.push_back(std::move(written));
      continue;
    }
    const Type& type = outputs_[i];
    outputs.push_back(eager::make_tensor(std::move(buffers[i]), type.dtype, type.sizes,
                                         eager::row_major_strides(type.sizes), 0, nbytes_of(type),
                                         device));
  }
  return outputs;
}

}  // namespace torch_tpu::compile
