#pragma once

#include <pjrt_c_api.h>

#include <memory>
#include <string>

namespace torch_tpu::pjrt {

// A PJRT plugin loaded into this process. Plugins cannot be unloaded (they leave threads and
// static state behind), so api() stays valid until the process ends.
class Plugin {
 public:
  // Loads and initializes the shared library. Loading a path again gives the same Plugin.
  // Throws Error when the file is missing, cannot be loaded, is not a PJRT plugin, or implements
  // another major version of the API.
  static std::shared_ptr<Plugin> load(const std::string& path);

  const PJRT_Api* api() const noexcept { return api_; }
  const std::string& path() const noexcept { return path_; }
  int major_version() const noexcept;
  int minor_version() const noexcept;
  // Names the build, for keys of caches that hold serialized programs: equal on every machine with
  // the same file. (Clients' platform_version does not do: CPU plugins just say "cpu".)
  // Reads about 1 MB of the file. Throws Error.
  std::string identity() const;

 private:
  struct OnlyLoad {  // so that load, and nobody else, can std::make_shared
    explicit OnlyLoad() = default;
  };

 public:
  Plugin(OnlyLoad, std::string path, const PJRT_Api* api);

 private:
  std::string path_;
  const PJRT_Api* api_;
};

}  // namespace torch_tpu::pjrt
