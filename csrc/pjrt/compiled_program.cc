#include "pjrt/compiled_program.h"

#include <span>

#include "pjrt/api.h"
#include "pjrt/error.h"
#include "pjrt/process_end.h"

namespace torch_tpu::pjrt {

void CompiledProgram::Deleter::operator()(PJRT_Executable* handle) const noexcept {
  const CompilerCall call;
  if (!call) return;
  auto args = make_args<PJRT_Executable_Destroy_Args>();
  args.executable = handle;
  discard(api, api->PJRT_Executable_Destroy(&args));
}

CompiledProgram::CompiledProgram(const PJRT_Api* api, PJRT_Executable* handle)
    : api_(api), handle_(handle, Deleter{api}) {}

template <typename Args, typename Function>
Args CompiledProgram::ask(Function* function, const char* operation) const {
  auto args = make_args<Args>();
  args.executable = handle_.get();
  check(api_, function(&args), operation);
  return args;
}

size_t CompiledProgram::num_outputs() const {
  return ask<PJRT_Executable_NumOutputs_Args>(api_->PJRT_Executable_NumOutputs, "number of outputs")
      .num_outputs;
}

std::string CompiledProgram::serialize() const {
  const CompilerCall call;
  call.require("serialize program");
  const auto args = ask<PJRT_Executable_Serialize_Args>(
      require_function(api_, &PJRT_Api::PJRT_Executable_Serialize, "PJRT_Executable_Serialize"),
      "serialize program");
  const std::unique_ptr<PJRT_SerializedExecutable, void (*)(PJRT_SerializedExecutable*)> backing(
      args.serialized_executable, args.serialized_executable_deleter);
  return std::string(args.serialized_bytes, args.serialized_bytes_size);
}

std::string CompiledProgram::fingerprint() const {
  const auto args = ask<PJRT_Executable_Fingerprint_Args>(
      require_function(api_, &PJRT_Api::PJRT_Executable_Fingerprint, "PJRT_Executable_Fingerprint"),
      "program fingerprint");
  return std::string(args.executable_fingerprint, args.executable_fingerprint_size);
}

MemoryStats CompiledProgram::memory_stats() const {
  const auto args = ask<PJRT_Executable_GetCompiledMemoryStats_Args>(
      require_function(api_, &PJRT_Api::PJRT_Executable_GetCompiledMemoryStats,
                       "PJRT_Executable_GetCompiledMemoryStats"),
      "program memory statistics");
  return {.generated_code = args.generated_code_size_in_bytes,
          .arguments = args.argument_size_in_bytes,
          .outputs = args.output_size_in_bytes,
          .aliased = args.alias_size_in_bytes,
          .temporaries = args.temp_size_in_bytes,
          .peak = args.peak_memory_in_bytes};
}

CostAnalysis CompiledProgram::cost_analysis() const {
  const auto args = ask<PJRT_Executable_GetCostAnalysis_Args>(
      require_function(api_, &PJRT_Api::PJRT_Executable_GetCostAnalysis,
                       "PJRT_Executable_GetCostAnalysis"),
      "program cost analysis");
  CostAnalysis costs;
  for (const PJRT_NamedValue& property : std::span(args.properties, args.num_properties)) {
    const std::string name(property.name, property.name_size);
    if (property.type == PJRT_NamedValue_kFloat) costs[name] = property.float_value;
    if (property.type == PJRT_NamedValue_kInt64) {
      costs[name] = static_cast<double>(property.int64_value);
    }
  }
  return costs;
}

}  // namespace torch_tpu::pjrt
