#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "cache/archive.h"

namespace torch_tpu::bindings {

// What looks after stored programs: settings, entries, files of entries, remote stores.
void bind_cache_tools(pybind11::module_& m);

pybind11::bytes to_bytes(std::string_view text);

// Name, offset and size of each entry of a file.
using Members = std::vector<std::tuple<std::string, uint64_t, uint64_t>>;
std::vector<cache::ArchiveMember> to_members(const Members& members);

}  // namespace torch_tpu::bindings
