#include "pjrt/executable.h"

#include <utility>

#include "pjrt/api.h"
#include "pjrt/client.h"
#include "pjrt/error.h"
#include "pjrt/process_end.h"

namespace torch_tpu::pjrt {
void Executable::Deleter::operator()(PJRT_LoadedExecutable* handle) const noexcept {
  const CompilerCall call;
  if (!call) return;
  auto args = make_args<PJRT_LoadedExecutable_Destroy_Args>();
  args.executable = handle;
  discard(api, api->PJRT_LoadedExecutable_Destroy(&args));
}

Executable::Executable(std::shared_ptr<Client> client, PJRT_LoadedExecutable* handle)
    : client_(std::move(client)), api_(client_->api()), handle_(handle, Deleter{api_}) {
  num_outputs_ = program().num_outputs();
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

CompiledProgram Executable::program() const {
  auto args = make_args<PJRT_LoadedExecutable_GetExecutable_Args>();
  args.loaded_executable = handle_.get();
  check(api_, api_->PJRT_LoadedExecutable_GetExecutable(&args), "inspect program");
  return CompiledProgram(api_, args.executable);
}

}  // namespace torch_tpu::pjrt
