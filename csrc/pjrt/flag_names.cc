#include "pjrt/flag_names.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>
#include <string_view>
#include <utility>

namespace torch_tpu::pjrt {

namespace {

constexpr std::string_view kPrefix = "xla_";
constexpr size_t kLongest = 120;
constexpr size_t kSuggestions = 3;
// Names in the file that are asked for at most: each is a compile.
constexpr size_t kAsked = 8;

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
}

// A file's contents, read as they are looked at.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path) {
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    struct stat status{};
    if (fstat(file, &status) == 0 && status.st_size > 0) {
      const auto size = static_cast<size_t>(status.st_size);
      const void* const data = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0);
      if (data != MAP_FAILED) contents_ = {static_cast<const char*>(data), size};
    }
    close(file);
  }
  ~MappedFile() {
    if (!contents_.empty()) munmap(const_cast<char*>(contents_.data()), contents_.size());
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::string_view contents() const { return contents_; }

 private:
  std::string_view contents_;
};

std::set<std::string> names_in(std::string_view text) {
  std::set<std::string> names;
  const char* const end = text.data() + text.size();
  const char* at = text.data();
  while ((at = static_cast<const char*>(memmem(at, static_cast<size_t>(end - at), kPrefix.data(),
                                               kPrefix.size()))) != nullptr) {
    const char* const stop = std::find_if_not(at, end, is_name_character);
    const auto length = static_cast<size_t>(stop - at);
    if ((at == text.data() || !is_name_character(at[-1])) && length <= kLongest) {
      names.emplace(at, length);
    }
    at = stop;
  }
  return names;
}

// How many characters to insert, remove or replace.
size_t edits(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, diagonal + 1, row[j] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::vector<std::string> flags_like(const std::string& plugin_path, const std::string& name,
                                    const std::function<bool(const std::string&)>& is_known) {
  if (name.size() > kLongest) return {};
  const MappedFile file(plugin_path);
  const size_t most = std::max<size_t>(2, name.size() / 4);
  std::vector<std::pair<size_t, std::string>> near;
  for (const std::string& other : names_in(file.contents())) {
    const size_t distance = edits(name, other);
    if (distance <= most && other != name) near.emplace_back(distance, other);
  }
  std::sort(near.begin(), near.end());
  if (near.size() > kAsked) near.resize(kAsked);
  std::vector<std::string> found;
  size_t nearest = 0;
  for (const auto& [distance, other] : near) {
    // Beside one that is near, those that are far would be noise.
    if (found.size() == kSuggestions || (!found.empty() && distance > nearest + 2)) break;
    if (!is_known(other)) continue;
    if (found.empty()) nearest = distance;
    found.push_back(other);
  }
  return found;
}

std::string flag_suggestion(
    const std::string& plugin_path, const std::string& name,
    const std::function<std::string(const std::string& name, const std::string& value)>& refusal) {
  // XLA's words. The empty value sets nothing: it is none of a number or bool, and no file.
  const auto is_known = [&](const std::string& flag) {
    return refusal(flag, "").find("No such compile option") == std::string::npos;
  };
  if (is_known(name)) return "";
  const std::vector<std::string> near = flags_like(plugin_path, name, is_known);
  std::string out;
  for (const std::string& flag : near) {
    out += (out.empty() ? "; did you mean " : flag == near.back() ? " or " : ", ") + flag;
  }
  return out.empty() ? out : out + "?";
}

}  // namespace torch_tpu::pjrt
