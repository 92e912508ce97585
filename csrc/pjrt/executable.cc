#include "pjrt/executable.h"

#include <utility>

#include "pjrt/api.h"
#include "pjrt/client.h"
#include "pjrt/error.h"

namespace torch_tpu::pjrt {
namespace {

// The program itself, apart from its being loaded on a client: what can be asked about it.
class Program {
 public:
  Program(const PJRT_Api* api, PJRT_LoadedExecutable* loaded) : api_(api) {
    auto args = make_args<PJRT_LoadedExecutable_GetExecutable_Args>();
    args.loaded_executable = loaded;
    check(api, api->PJRT_LoadedExecutable_GetExecutable(&args), "inspect program");
    handle_ = args.executable;
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program() {
    auto args = make_args<PJRT_Executable_Destroy_Args>();
    args.executable = handle_;
    discard(api_, api_->PJRT_Executable_Destroy(&args));
  }

  // Calls `function` with Args about this program and returns the filled Args.
  template <typename Args, typename Function>
  Args ask(Function* function, const char* operation) const {
    auto args = make_args<Args>();
    args.executable = handle_;
    check(api_, function(&args), operation);
    return args;
  }

 private:
  const PJRT_Api* api_;
  PJRT_Executable* handle_ = nullptr;
};

}  // namespace

void Executable::Deleter::operator()(PJRT_LoadedExecutable* handle) const noexcept {
  auto args = make_args<PJRT_LoadedExecutable_Destroy_Args>();
  args.executable = handle;
  discard(api, api->PJRT_LoadedExecutable_Destroy(&args));
}

Executable::Executable(std::shared_ptr<Client> client, PJRT_LoadedExecutable* handle)
    : client_(std::move(client)), api_(client_->api()), handle_(handle, Deleter{api_}) {
  num_outputs_ = Program(api_, handle)
                     .ask<PJRT_Executable_NumOutputs_Args>(api_->PJRT_Executable_NumOutputs,
                                                           "number of outputs")
                     .num_outputs;
}

void Executable::execute(PJRT_Buffer* const* args, size_t num_args, PJRT_Buffer** outputs,
                         std::span<const int64_t> non_donatable, PJRT_Device* device) const {
  auto options = make_args<PJRT_ExecuteOptions>();
  options.non_donatable_input_indices = non_donatable.data();
  options.num_non_donatable_input_indices = non_donatable.size();

  auto call = make_args<PJRT_LoadedExecutable_Execute_Args>();
  call.executable = handle_.get();
  call.options = &options;
  call.argument_lists = &args;
  call.num_devices = 1;
  call.num_args = num_args;
  call.output_lists = &outputs;
  call.execute_device = device;
  check(api_, api_->PJRT_LoadedExecutable_Execute(&call), "execute");
}

std::string Executable::serialize() const {
  const Program program(api_, handle_.get());
  const auto args = program.ask<PJRT_Executable_Serialize_Args>(
      require_function(api_, &PJRT_Api::PJRT_Executable_Serialize, "PJRT_Executable_Serialize"),
      "serialize program");
  const std::unique_ptr<PJRT_SerializedExecutable, void (*)(PJRT_SerializedExecutable*)> backing(
      args.serialized_executable, args.serialized_executable_deleter);
  return std::string(args.serialized_bytes, args.serialized_bytes_size);
}

std::string Executable::fingerprint() const {
  const Program program(api_, handle_.get());
  const auto args = program.ask<PJRT_Executable_Fingerprint_Args>(
      require_function(api_, &PJRT_Api::PJRT_Executable_Fingerprint, "PJRT_Executable_Fingerprint"),
      "program fingerprint");
  return std::string(args.executable_fingerprint, args.executable_fingerprint_size);
}

Executable::MemoryStats Executable::memory_stats() const {
  const Program program(api_, handle_.get());
  const auto args = program.ask<PJRT_Executable_GetCompiledMemoryStats_Args>(
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

Executable::CostAnalysis Executable::cost_analysis() const {
  const Program program(api_, handle_.get());
  const auto args = program.ask<PJRT_Executable_GetCostAnalysis_Args>(
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
