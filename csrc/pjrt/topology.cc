#include "pjrt/topology.h"

#include <cstdlib>
#include <map>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "pjrt/api.h"
#include "pjrt/error.h"
#include "pjrt/process_end.h"
#include "pjrt/stablehlo_program.h"

namespace torch_tpu::pjrt {
namespace {

// Sets environment variables and puts back what was there before.
class ScopedEnvironment {
 public:
  ScopedEnvironment() = default;
  ScopedEnvironment(const ScopedEnvironment&) = delete;
  ScopedEnvironment& operator=(const ScopedEnvironment&) = delete;
  ~ScopedEnvironment() {
    for (const auto& [name, value] : before_) {
      if (value) {
        setenv(name, value->c_str(), /*overwrite=*/1);
      } else {
        unsetenv(name);
      }
    }
  }

  void set(const char* name, const char* value) {
    keep(name);
    setenv(name, value, /*overwrite=*/1);
  }

  // For a variable that the scope's code may set.
  void keep(const char* name) {
    const char* const before = std::getenv(name);
    before_.emplace_back(name, before ? std::optional<std::string>(before) : std::nullopt);
  }

 private:
  std::vector<std::pair<const char*, std::optional<std::string>>> before_;
};

// What libtpu otherwise asks the machine about. The accelerator type only has to be a valid one:
// programs are compiled for the topology they name.
void describe_absent_machine(ScopedEnvironment& environment) {
  environment.set("TPU_SKIP_MDS_QUERY", "1");
  environment.set("TPU_ACCELERATOR_TYPE", "v5litepod-4");
  environment.set("TPU_WORKER_ID", "0");
  environment.set("TPU_WORKER_HOSTNAMES", "localhost");
  // Its lock file protects a TPU that is not there from a second process.
  environment.set("ALLOW_MULTIPLE_LIBTPU_LOAD", "1");
  // A log file per process in the temporary directory, unless the user wants them.
  if (std::getenv("TPU_LOG_DIR") == nullptr) environment.set("TPU_LOG_DIR", "disabled");
  // These it sets itself, for child processes to trip over.
  for (const char* const name :
       {"CLOUD_TPU_ACCELERATOR_TYPE", "CLOUD_TPU_TASK_ID", "TPU_PREMAPPED_BUFFER_SIZE"}) {
    environment.keep(name);
  }
}

}  // namespace

std::shared_ptr<Plugin> load_compiler(const std::string& libtpu, bool tpu_attached) {
  if (tpu_attached) return Plugin::load(libtpu);
  // The environment is touched once for each library, and by one caller at a time: two would each
  // restore what the other has set.
  static std::mutex mutex;
  static std::map<std::string, std::shared_ptr<Plugin>> loaded;
  const std::lock_guard lock(mutex);
  std::shared_ptr<Plugin>& plugin = loaded[libtpu];
  if (plugin == nullptr) {
    ScopedEnvironment environment;
    describe_absent_machine(environment);
    plugin = Plugin::load(libtpu);
  }
  return plugin;
}

void Topology::Deleter::operator()(PJRT_TopologyDescription* handle) const noexcept {
  auto args = make_args<PJRT_TopologyDescription_Destroy_Args>();
  args.topology = handle;
  discard(api, api->PJRT_TopologyDescription_Destroy(&args));
}

Topology::Topology(std::shared_ptr<Plugin> plugin, std::string name)
    : plugin_(std::move(plugin)), name_(std::move(name)), handle_(nullptr, Deleter{api()}) {
  auto create = make_args<PJRT_TopologyDescription_Create_Args>();
  create.topology_name = name_.data();
  create.topology_name_size = name_.size();
  check(api(),
        require_function(api(), &PJRT_Api::PJRT_TopologyDescription_Create,
                         "PJRT_TopologyDescription_Create")(&create),
        "topology");
  handle_.reset(create.topology);

  auto devices = make_args<PJRT_TopologyDescription_GetDeviceDescriptions_Args>();
  devices.topology = handle_.get();
  check(api(), api()->PJRT_TopologyDescription_GetDeviceDescriptions(&devices), "topology devices");
  num_devices_ = devices.num_descriptions;
  if (num_devices_ == 0) {
    throw Error(PJRT_Error_Code_INVALID_ARGUMENT,
                "[topology] expected at least one device in " + name_ + ", the plugin lists none");
  }
  auto kind = make_args<PJRT_DeviceDescription_Kind_Args>();
  kind.device_description = devices.descriptions[0];
  check(api(), api()->PJRT_DeviceDescription_Kind(&kind), "device kind");
  device_kind_.assign(kind.device_kind, kind.device_kind_size);
}

std::optional<int64_t> Topology::device_memory() const {
  if (!has_function(api(), &PJRT_Api::PJRT_TopologyDescription_Attributes)) return std::nullopt;
  auto args = make_args<PJRT_TopologyDescription_Attributes_Args>();
  args.topology = handle_.get();
  check(api(), api()->PJRT_TopologyDescription_Attributes(&args), "topology attributes");
  for (const PJRT_NamedValue& attribute : std::span(args.attributes, args.num_attributes)) {
    if (attribute.type == PJRT_NamedValue_kInt64 &&
        std::string_view(attribute.name, attribute.name_size) == "device_memory_bytes_limit") {
      return attribute.int64_value;
    }
  }
  return std::nullopt;
}

CompiledProgram Topology::compile(std::string_view stablehlo, const CompileOptions& options) const {
  const CompilerCall call;
  call.require("compile");
  const PJRT_Program program = stablehlo_program(stablehlo);
  const std::string serialized = options.serialize();
  auto args = make_args<PJRT_Compile_Args>();
  args.topology = handle_.get();
  args.program = &program;
  args.compile_options = serialized.data();
  args.compile_options_size = serialized.size();
  check(api(), require_function(api(), &PJRT_Api::PJRT_Compile, "PJRT_Compile")(&args), "compile");
  return CompiledProgram(api(), args.executable);
}

}  // namespace torch_tpu::pjrt
