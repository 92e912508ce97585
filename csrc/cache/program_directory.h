// Compiled programs in a directory, for the next process.
//
// A file is named by a hash of what the program was compiled from and holds that source in full:
// a load compares it, so neither a hash collision nor a damaged file can give a wrong program.
// Files appear by rename, so readers never see half of one, and several processes may share the
// directory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace torch_tpu::cache {

class ProgramDirectory {
 public:
  // `scope` is what a compiled program depends on beside its source: the plugin's build, the
  // machine's instruction set.
  ProgramDirectory(std::filesystem::path root, std::string scope);

  // The executable's bytes; nullopt when there is none or the file is unusable.
  std::optional<std::string> load(std::string_view source) const;
  // Errors (a full disk, no permission) are silent: the cache is an aid, not a promise.
  void store(std::string_view source, std::string_view executable) const noexcept;

  const std::filesystem::path& root() const { return root_; }

 private:
  std::filesystem::path file_for(std::string_view source) const;

  std::filesystem::path root_;
  std::string scope_;
};

// Where programs are kept: TORCH_TPU_CACHE_DIR, else torch_tpu in the user's cache directory
// ($XDG_CACHE_HOME or ~/.cache). nullopt when TORCH_TPU_CACHE=0 or there is no such place.
// Throws std::invalid_argument when TORCH_TPU_CACHE is neither 0 nor 1.
std::optional<std::filesystem::path> default_root();

// Identifies the instruction set programs for this machine's CPU are compiled for.
std::string host_identity();

// 128 bits of a text, as 32 hexadecimal digits. Not cryptographic.
std::string hash128(std::string_view text);

}  // namespace torch_tpu::cache
