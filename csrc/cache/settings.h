// What the environment says about the cache.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace torch_tpu::cache {

struct Settings {
  // Tier 1, used by the compile service.
  uint64_t memory_bytes = 4ull << 30;
  // Tier 2. Empty: off.
  std::filesystem::path machine_folder;
  // The folder everybody may write that machine_folder is under.
  std::filesystem::path machine_anchor;
  uint64_t machine_bytes = 1ull << 30;  // 0: no limit
  // Tier 3: a path, or a URL with "://". Empty: off.
  std::string persistent_root;
  uint64_t persistent_bytes = 10ull << 30;  // 0: no limit
  // Signs entries. Empty: no signatures.
  std::string signing_key;
  // What there is to say about these choices, for the log.
  std::vector<std::string> notes;

  bool persistent_is_remote() const { return persistent_root.find("://") != std::string::npos; }

  // Throws std::invalid_argument that begins with the variable's name.
  static Settings from_environment();
};

}  // namespace torch_tpu::cache
