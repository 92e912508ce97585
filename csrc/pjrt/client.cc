#include "pjrt/client.h"

#include <type_traits>
#include <utility>
#include <variant>

#include "pjrt/api.h"
#include "pjrt/error.h"
#include "pjrt/process_end.h"
#include "pjrt/stablehlo_program.h"

namespace torch_tpu::pjrt {
namespace {

// The C view of an option; valid while `name` and `option` live.
PJRT_NamedValue named_value(const std::string& name, const Option& option) {
  auto named = make_args<PJRT_NamedValue>();
  named.name = name.data();
  named.name_size = name.size();
  named.value_size = 1;
  std::visit(
      [&named](const auto& value) {
        using Value = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<Value, std::string>) {
          named.type = PJRT_NamedValue_kString;
          named.string_value = value.data();
          named.value_size = value.size();
        } else if constexpr (std::is_same_v<Value, int64_t>) {
          named.type = PJRT_NamedValue_kInt64;
          named.int64_value = value;
        } else if constexpr (std::is_same_v<Value, bool>) {
          named.type = PJRT_NamedValue_kBool;
          named.bool_value = value;
        } else {
          named.type = PJRT_NamedValue_kFloat;
          named.float_value = value;
        }
      },
      option);
  return named;
}

PJRT_HostBufferSemantics to_pjrt(HostSemantics semantics) {
  switch (semantics) {
    case HostSemantics::ImmutableOnlyDuringCall:
      return PJRT_HostBufferSemantics_kImmutableOnlyDuringCall;
    case HostSemantics::ImmutableUntilTransferCompletes:
      return PJRT_HostBufferSemantics_kImmutableUntilTransferCompletes;
    case HostSemantics::ImmutableZeroCopy:
      return PJRT_HostBufferSemantics_kImmutableZeroCopy;
  }
  throw Error(PJRT_Error_Code_INVALID_ARGUMENT, "[copy to device] unknown host semantics");
}

std::vector<Device> addressable_devices(const PJRT_Api* api, PJRT_Client* client) {
  auto args = make_args<PJRT_Client_AddressableDevices_Args>();
  args.client = client;
  check(api, api->PJRT_Client_AddressableDevices(&args), "list devices");
  std::vector<Device> devices;
  devices.reserve(args.num_addressable_devices);
  for (PJRT_Device* const device :
       std::span(args.addressable_devices, args.num_addressable_devices)) {
    devices.emplace_back(api, device);
  }
  return devices;
}

}  // namespace

void Client::Deleter::operator()(PJRT_Client* handle) const noexcept {
  auto args = make_args<PJRT_Client_Destroy_Args>();
  args.client = handle;
  discard(api, api->PJRT_Client_Destroy(&args));
}

Client::Client(OnlyCreate, std::shared_ptr<Plugin> plugin, PJRT_Client* handle)
    : plugin_(std::move(plugin)), handle_(handle, Deleter{plugin_->api()}) {
  devices_ = addressable_devices(api(), handle);
}

std::shared_ptr<Client> Client::create(std::shared_ptr<Plugin> plugin, const Options& options) {
  std::vector<PJRT_NamedValue> named;
  named.reserve(options.size());
  for (const auto& [name, value] : options) named.push_back(named_value(name, value));

  const PJRT_Api* const api = plugin->api();
  auto args = make_args<PJRT_Client_Create_Args>();
  args.create_options = named.data();
  args.num_options = named.size();
  check(api, api->PJRT_Client_Create(&args), "create client");
  return std::make_shared<Client>(OnlyCreate{}, std::move(plugin), args.client);
}

std::string Client::platform_name() const {
  auto args = make_args<PJRT_Client_PlatformName_Args>();
  args.client = handle();
  check(api(), api()->PJRT_Client_PlatformName(&args), "platform name");
  return {args.platform_name, args.platform_name_size};
}

std::string Client::platform_version() const {
  auto args = make_args<PJRT_Client_PlatformVersion_Args>();
  args.client = handle();
  check(api(), api()->PJRT_Client_PlatformVersion(&args), "platform version");
  return {args.platform_version, args.platform_version_size};
}

std::shared_ptr<Executable> Client::compile(std::string_view stablehlo_text,
                                            const CompileOptions& options) {
  const CompilerCall call;
  call.require("compile");
  const PJRT_Program program = stablehlo_program(stablehlo_text);
  const std::string serialized = options.serialize();
  auto args = make_args<PJRT_Client_Compile_Args>();
  args.client = handle();
  args.program = &program;
  args.compile_options = serialized.data();
  args.compile_options_size = serialized.size();
  check(api(), api()->PJRT_Client_Compile(&args), "compile");
  return std::make_shared<Executable>(shared_from_this(), args.executable);
}

std::shared_ptr<Executable> Client::deserialize(std::string_view bytes) {
  const auto function = require_function(api(), &PJRT_Api::PJRT_Executable_DeserializeAndLoad,
                                         "PJRT_Executable_DeserializeAndLoad");
  const CompilerCall call;
  call.require("deserialize program");
  auto args = make_args<PJRT_Executable_DeserializeAndLoad_Args>();
  args.client = handle();
  args.serialized_executable = bytes.data();
  args.serialized_executable_size = bytes.size();
  check(api(), function(&args), "deserialize program");
  return std::make_shared<Executable>(shared_from_this(), args.loaded_executable);
}

Buffer Client::buffer_from_host(const void* data, PJRT_Buffer_Type element_type,
                                std::span<const int64_t> dims, const Device& device,
                                HostSemantics semantics, std::function<void()> done_with_host) {
  // An array without elements may come without memory, which plugins refuse.
  static constexpr std::byte kNothing{};
  auto args = make_args<PJRT_Client_BufferFromHostBuffer_Args>();
  args.client = handle();
  args.data = data != nullptr ? data : &kNothing;
  args.type = element_type;
  args.dims = dims.data();
  args.num_dims = dims.size();
  args.host_buffer_semantics = to_pjrt(semantics);
  args.device = device.handle;
  check(api(), api()->PJRT_Client_BufferFromHostBuffer(&args), "copy to device");
  Buffer buffer = Buffer::adopt(api(), args.buffer);
  const Event done = Event::adopt(api(), args.done_with_host_buffer);
  if (done_with_host) {
    done.on_ready([notify = std::move(done_with_host)](const std::string*) { notify(); });
  }
  return buffer;
}

}  // namespace torch_tpu::pjrt
