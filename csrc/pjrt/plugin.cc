#include "pjrt/plugin.h"

#include <dlfcn.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>
#include <utility>

#include "pjrt/api.h"
#include "pjrt/error.h"

namespace torch_tpu::pjrt {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(int code, const std::string& path, const std::string& why) {
  throw Error(code, "[load plugin] " + path + ": " + why);
}

struct LibraryCloser {
  void operator()(void* library) const noexcept { dlclose(library); }
};
using Library = std::unique_ptr<void, LibraryCloser>;

Library open_library(const std::string& path) {
  // A bare name is left to the loader's own search.
  if (path.find('/') != std::string::npos && !fs::is_regular_file(path)) {
    fail(PJRT_Error_Code_NOT_FOUND, path,
         "expected a PJRT plugin (a shared library), found no file");
  }
  // Plugins log to stderr: at start-up, on every failure they also return, and (XLA CPU) an error
  // of 2 KB on every deserialization, about machine features that do not matter. Only what kills
  // the process is left; the user's own setting wins.
  setenv("TF_CPP_MIN_LOG_LEVEL", "3", /*overwrite=*/0);
  Library library(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL));
  if (!library) {
    const char* const reason = dlerror();
    fail(PJRT_Error_Code_FAILED_PRECONDITION, path,
         std::string("the system cannot load it: ") + (reason ? reason : "unknown reason"));
  }
  return library;
}

const PJRT_Api* get_api(const std::string& path, void* library) {
  using GetPjrtApi = const PJRT_Api*();
  const auto get = reinterpret_cast<GetPjrtApi*>(dlsym(library, "GetPjrtApi"));
  if (get == nullptr) {
    fail(PJRT_Error_Code_INVALID_ARGUMENT, path,
         "expected a PJRT plugin, but this library does not export GetPjrtApi");
  }
  const PJRT_Api* const api = get();
  if (api == nullptr) fail(PJRT_Error_Code_INTERNAL, path, "its GetPjrtApi returned null");
  const PJRT_Api_Version& version = api->pjrt_api_version;
  if (version.major_version != PJRT_API_MAJOR) {
    fail(PJRT_Error_Code_FAILED_PRECONDITION, path,
         "expected PJRT API major version " + std::to_string(PJRT_API_MAJOR) +
             ", the plugin implements " + std::to_string(version.major_version) + "." +
             std::to_string(version.minor_version) + "; use a plugin and a torch_tpu that agree");
  }
  return api;
}

// What this layer calls without asking first, hot path included.
void require_core_functions(const PJRT_Api* api) {
#define TORCH_TPU_REQUIRE(name) require_function(api, &PJRT_Api::name, #name)
  TORCH_TPU_REQUIRE(PJRT_Error_Destroy);
  TORCH_TPU_REQUIRE(PJRT_Error_Message);
  TORCH_TPU_REQUIRE(PJRT_Error_GetCode);
  TORCH_TPU_REQUIRE(PJRT_Event_Destroy);
  TORCH_TPU_REQUIRE(PJRT_Event_IsReady);
  TORCH_TPU_REQUIRE(PJRT_Event_Await);
  TORCH_TPU_REQUIRE(PJRT_Event_OnReady);
  TORCH_TPU_REQUIRE(PJRT_Client_Create);
  TORCH_TPU_REQUIRE(PJRT_Client_Destroy);
  TORCH_TPU_REQUIRE(PJRT_Client_PlatformName);
  TORCH_TPU_REQUIRE(PJRT_Client_PlatformVersion);
  TORCH_TPU_REQUIRE(PJRT_Client_AddressableDevices);
  TORCH_TPU_REQUIRE(PJRT_Client_Compile);
  TORCH_TPU_REQUIRE(PJRT_Client_BufferFromHostBuffer);
  TORCH_TPU_REQUIRE(PJRT_Device_GetDescription);
  TORCH_TPU_REQUIRE(PJRT_Device_LocalHardwareId);
  TORCH_TPU_REQUIRE(PJRT_DeviceDescription_Id);
  TORCH_TPU_REQUIRE(PJRT_DeviceDescription_Kind);
  TORCH_TPU_REQUIRE(PJRT_Executable_Destroy);
  TORCH_TPU_REQUIRE(PJRT_Executable_NumOutputs);
  TORCH_TPU_REQUIRE(PJRT_LoadedExecutable_Destroy);
  TORCH_TPU_REQUIRE(PJRT_LoadedExecutable_GetExecutable);
  TORCH_TPU_REQUIRE(PJRT_LoadedExecutable_Execute);
  TORCH_TPU_REQUIRE(PJRT_Buffer_Destroy);
  TORCH_TPU_REQUIRE(PJRT_Buffer_ElementType);
  TORCH_TPU_REQUIRE(PJRT_Buffer_Dimensions);
  TORCH_TPU_REQUIRE(PJRT_Buffer_OnDeviceSizeInBytes);
  TORCH_TPU_REQUIRE(PJRT_Buffer_IsDeleted);
  TORCH_TPU_REQUIRE(PJRT_Buffer_ReadyEvent);
  TORCH_TPU_REQUIRE(PJRT_Buffer_ToHostBuffer);
#undef TORCH_TPU_REQUIRE
}

void initialize(const PJRT_Api* api) {
  // Plugins from before this function existed need no initialization.
  if (!has_function(api, &PJRT_Api::PJRT_Plugin_Initialize)) return;
  auto args = make_args<PJRT_Plugin_Initialize_Args>();
  check(api, api->PJRT_Plugin_Initialize(&args), "initialize plugin");
}

// Every plugin of the process, so that each is initialized once. Owner: Plugin::load.
struct Registry {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<Plugin>> plugins;  // by resolved path

  static Registry& get() {
    static Registry registry;
    return registry;
  }
};

std::string resolve(const std::string& path) {
  std::error_code failed;
  const fs::path resolved = fs::canonical(path, failed);
  return failed ? path : resolved.string();
}

// FNV-1a over the size and evenly spaced pages: a different build of these libraries, hundreds of
// MB of machine code, differs in nearly every page, and hashing all of it would take 0.3 s.
uint64_t sampled_hash(const std::string& path) {
  constexpr uint64_t kPages = 256;
  constexpr uint64_t kPageSize = 4096;
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const auto end = static_cast<std::streamoff>(file.tellg());
  if (!file || end < 0) fail(PJRT_Error_Code_NOT_FOUND, path, "cannot be read any more");
  const auto size = static_cast<uint64_t>(end);

  uint64_t hash = 0xcbf29ce484222325;
  const auto mix = [&hash](unsigned char byte) { hash = (hash ^ byte) * 0x100000001b3; };
  for (int shift = 0; shift < 64; shift += 8) mix(static_cast<unsigned char>(size >> shift));
  std::array<char, kPageSize> page;
  for (uint64_t i = 0; i < kPages; ++i) {
    file.clear();  // the page before may have reached the end
    file.seekg(static_cast<std::streamoff>(size / kPages * i));
    file.read(page.data(), page.size());
    for (std::streamsize k = 0; k < file.gcount(); ++k) mix(static_cast<unsigned char>(page[k]));
  }
  return hash;
}

}  // namespace

Plugin::Plugin(OnlyLoad, std::string path, const PJRT_Api* api)
    : path_(std::move(path)), api_(api) {}

std::shared_ptr<Plugin> Plugin::load(const std::string& path) {
  Registry& registry = Registry::get();
  const std::lock_guard lock(registry.mutex);
  std::shared_ptr<Plugin>& plugin = registry.plugins[resolve(path)];
  if (plugin == nullptr) {
    Library library = open_library(path);
    const PJRT_Api* const api = get_api(path, library.get());
    // From here on the library's code may have started threads: never unload it.
    library.release();
    require_core_functions(api);
    initialize(api);
    plugin = std::make_shared<Plugin>(OnlyLoad{}, path, api);
  }
  return plugin;
}

int Plugin::major_version() const noexcept { return api_->pjrt_api_version.major_version; }
int Plugin::minor_version() const noexcept { return api_->pjrt_api_version.minor_version; }

std::string Plugin::identity() const {
  // The file that was loaded, where path() is a bare name.
  Dl_info info{};
  const bool known = dladdr(api_, &info) != 0 && info.dli_fname != nullptr;
  std::ostringstream text;
  text << "pjrt-" << major_version() << '.' << minor_version() << '-' << std::hex
       << sampled_hash(known ? info.dli_fname : path_);
  return text.str();
}

}  // namespace torch_tpu::pjrt
