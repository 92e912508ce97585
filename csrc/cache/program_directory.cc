#include "cache/program_directory.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>

namespace torch_tpu::cache {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMagic = "torch_tpu program 1\n";

uint64_t mix(uint64_t h) {
  h ^= h >> 33;
  h *= 0xff51afd7ed558ccdull;
  h ^= h >> 33;
  h *= 0xc4ceb9fe1a85ec53ull;
  return h ^ h >> 33;
}

void append_u64(std::string& out, uint64_t value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

std::optional<uint64_t> take_u64(std::string_view& in) {
  uint64_t value;
  if (in.size() < sizeof value) return std::nullopt;
  std::memcpy(&value, in.data(), sizeof value);
  in.remove_prefix(sizeof value);
  return value;
}

// A field with its length in front.
std::optional<std::string_view> take_field(std::string_view& in) {
  const std::optional<uint64_t> size = take_u64(in);
  if (!size || in.size() < *size) return std::nullopt;
  const std::string_view field = in.substr(0, *size);
  in.remove_prefix(*size);
  return field;
}

std::optional<std::string> read_file(const fs::path& path) {
  std::error_code error;
  const auto size = fs::file_size(path, error);
  if (error) return std::nullopt;
  std::string content(size, '\0');
  std::ifstream file(path, std::ios::binary);
  if (!file.read(content.data(), static_cast<std::streamsize>(size))) return std::nullopt;
  return content;
}

}  // namespace

std::string hash128(std::string_view text) {
  uint64_t a = 0x9e3779b97f4a7c15ull ^ text.size(), b = 0xc2b2ae3d27d4eb4full + text.size();
  for (size_t i = 0; i < text.size(); i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, text.data() + i, std::min<size_t>(8, text.size() - i));
    a = mix(a ^ word);
    b = mix(b + word * 0x9fb21c651e98df25ull);
  }
  constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (const uint64_t h : {mix(a ^ b << 1), mix(b)}) {
    for (int shift = 60; shift >= 0; shift -= 4) out += kDigits[h >> shift & 15];
  }
  return out;
}

std::string host_identity() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  std::string line, identity;
  while (std::getline(cpuinfo, line)) {
    if (line.empty()) break;  // the first processor speaks for all
    if (line.starts_with("model name") || line.starts_with("flags") ||
        line.starts_with("Features")) {
      identity += line;
    }
  }
  return hash128(identity);
}

std::optional<fs::path> default_root() {
  const auto get = [](const char* name) {
    const char* text = std::getenv(name);
    return std::string(text ? text : "");
  };
  const std::string wanted = get("TORCH_TPU_CACHE");
  if (wanted == "0") return std::nullopt;
  if (!wanted.empty() && wanted != "1") {
    throw std::invalid_argument("TORCH_TPU_CACHE: expected 0 or 1, got '" + wanted + "'");
  }
  if (const std::string dir = get("TORCH_TPU_CACHE_DIR"); !dir.empty()) return fs::path(dir);
  if (const std::string xdg = get("XDG_CACHE_HOME"); !xdg.empty()) {
    return fs::path(xdg) / "torch_tpu";
  }
  if (const std::string home = get("HOME"); !home.empty()) {
    return fs::path(home) / ".cache" / "torch_tpu";
  }
  return std::nullopt;
}

ProgramDirectory::ProgramDirectory(fs::path root, std::string scope)
    : root_(std::move(root)), scope_(std::move(scope)) {}

fs::path ProgramDirectory::file_for(std::string_view source) const {
  const std::string name = hash128(scope_ + '\n' + std::string(source));
  return root_ / name.substr(0, 2) / (name.substr(2) + ".program");
}

std::optional<std::string> ProgramDirectory::load(std::string_view source) const {
  const std::optional<std::string> content = read_file(file_for(source));
  if (!content) return std::nullopt;
  std::string_view rest = *content;
  if (!rest.starts_with(kMagic)) return std::nullopt;
  rest.remove_prefix(kMagic.size());
  const auto scope = take_field(rest), stored_source = take_field(rest);
  const auto check = take_field(rest), executable = take_field(rest);
  if (!scope || *scope != scope_ || !stored_source || *stored_source != source || !check ||
      !executable || !rest.empty() || *check != hash128(*executable)) {
    return std::nullopt;
  }
  return std::string(*executable);
}

void ProgramDirectory::store(std::string_view source, std::string_view executable) const noexcept {
  try {
    const fs::path target = file_for(source);
    fs::create_directories(target.parent_path());
    std::string content(kMagic);
    const std::string check = hash128(executable);
    for (const std::string_view field :
         {std::string_view(scope_), source, std::string_view(check), executable}) {
      append_u64(content, field.size());
      content += field;
    }
    static std::atomic<uint64_t> counter{0};
    const fs::path temporary = target.string() + "." + std::to_string(getpid()) + "." +
                               std::to_string(counter.fetch_add(1)) + ".tmp";
    bool written = false;
    {
      std::ofstream file(temporary, std::ios::binary);
      file.write(content.data(), static_cast<std::streamsize>(content.size()));
      file.flush();
      written = file.good();
    }
    std::error_code error;
    if (written) fs::rename(temporary, target, error);
    if (!written || error) fs::remove(temporary, error);
  } catch (...) {
  }
}

}  // namespace torch_tpu::cache
