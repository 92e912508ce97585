#include "pjrt/discovery.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "pjrt/error.h"

namespace torch_tpu::pjrt {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPluginVariable = "TORCH_TPU_PJRT_PLUGIN";

// First word of a one-line file of sysfs; empty if it cannot be read.
std::string read_word(const fs::path& path) {
  std::string word;
  std::ifstream(path) >> word;
  return word;
}

// Google's PCI functions are TPUs, except the network cards and disks of its cloud machines. Told
// apart by device class rather than by a list of device ids, which every new TPU would outdate.
bool is_tpu_function(const fs::path& device) {
  if (read_word(device / "vendor") != "0x1ae0") return false;
  const std::string device_class = read_word(device / "class");
  return !device_class.starts_with("0x01") && !device_class.starts_with("0x02");
}

// /dev/accel0, as the driver of TPU v2 to v4 calls it. (A directory /dev/accel is Linux's own
// subsystem for accelerators of any make, and /dev/vfio is there for any passed-through device.)
bool is_tpu_node(const fs::path& node) {
  const std::string name = node.filename().string();
  return name.starts_with("accel") && name.size() > 5 &&
         std::all_of(name.begin() + 5, name.end(),
                     [](unsigned char c) { return std::isdigit(c) != 0; });
}

template <typename Predicate>
bool any_entry(const fs::path& directory, Predicate predicate) {
  std::error_code unreadable;  // then there is nothing to see
  const fs::directory_iterator entries(directory, unreadable);
  if (unreadable) return false;
  return std::any_of(begin(entries), end(entries),
                     [&](const fs::directory_entry& entry) { return predicate(entry.path()); });
}

bool is_file(const std::string& path) {
  std::error_code unreadable;
  return fs::is_regular_file(path, unreadable);
}

std::string first_file(const std::vector<std::string>& candidates) {
  const auto found = std::find_if(candidates.begin(), candidates.end(), is_file);
  return found == candidates.end() ? std::string() : *found;
}

std::string listed(const std::vector<std::string>& paths) {
  if (paths.empty()) return " none (no installed package offers one)";
  std::string lines;
  for (const std::string& path : paths) lines += "\n  " + path + ": no such file";
  return lines;
}

std::string how_to_set() {
  return std::string("set ") + kPluginVariable + " to the path of a PJRT plugin";
}

}  // namespace

bool tpu_hardware_present(const PluginSearch& search) {
  return any_entry(fs::path(search.sys_root) / "bus/pci/devices", is_tpu_function) ||
         any_entry(search.dev_root, is_tpu_node);
}

PluginChoice choose_plugin(const PluginSearch& search) {
  const char* const chosen = std::getenv(kPluginVariable);
  if (chosen != nullptr && *chosen != '\0') {
    if (!is_file(chosen)) {
      throw Error(PJRT_Error_Code_NOT_FOUND,
                  std::string("[choose plugin] expected ") + kPluginVariable +
                      " to be the path of a PJRT plugin, got \"" + chosen +
                      "\", where there is no file; correct it, or unset it to use an installed "
                      "plugin");
    }
    return {chosen, kPluginVariable};
  }
  if (tpu_hardware_present(search)) {
    const std::string path = first_file(search.libtpu);
    if (path.empty()) {
      throw Error(PJRT_Error_Code_NOT_FOUND,
                  "[choose plugin] this machine has a TPU, but libtpu.so was not found; install "
                  "the package libtpu, or " +
                      how_to_set() +
                      " (a CPU plugin's to leave the TPU alone). Tried:" + listed(search.libtpu));
    }
    return {path, "libtpu"};
  }
  const std::string path = first_file(search.cpu);
  if (path.empty()) {
    throw Error(PJRT_Error_Code_NOT_FOUND,
                "[choose plugin] found no PJRT plugin: there is no TPU on this machine and no CPU "
                "plugin; install the package fastatomstruct-xla-cpu, or " +
                    how_to_set() + ". CPU plugins tried:" + listed(search.cpu));
  }
  return {path, "cpu"};
}

std::shared_ptr<Plugin> load_plugin(const PluginChoice& choice) {
  try {
    return Plugin::load(choice.path);
  } catch (const Error& error) {
    const bool by_variable = choice.source == kPluginVariable;
    throw Error(error.code(),
                std::string(error.what()) +
                    (by_variable ? std::string(". It was chosen by ") + kPluginVariable +
                                       "; correct it, or unset it to use an installed plugin"
                                 : ". It is the installed " + choice.source +
                                       " plugin; reinstall its package, or " + how_to_set()));
  }
}

}  // namespace torch_tpu::pjrt
