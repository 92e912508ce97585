// The compilation cache's tools, for torch.tpu.compilation_cache and the command line. They need no
// device, and no torch: this file is a part of `_C`, and with cache_host.cc the module `_cache`.
#include "bindings/cache_tools.h"

#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "bindings/cache_host.h"
#include "cache/program_cache.h"
#include "environment/environment.h"

namespace py = pybind11;

namespace torch_tpu::bindings {

namespace {

using cache::ProgramCache;
using cache::Tier;

Tier parse_tier(const std::string& name) {
  for (const Tier tier : {Tier::kMachine, Tier::kPersistent, Tier::kArchive}) {
    if (name == cache::to_string(tier)) return tier;
  }
  throw py::value_error("compilation cache: expected the tier 'machine' or 'persistent', got '" +
                        name + "'");
}

cache::Store& store_of(const std::string& tier) {
  if (cache::Store* store = ProgramCache::get().tier_store(parse_tier(tier))) return *store;
  throw py::value_error("compilation cache: the tier '" + tier + "' is off");
}

py::dict settings() {
  const cache::Settings& s = ProgramCache::get().settings();
  py::dict d;
  d["memory_bytes"] = s.memory_bytes;
  d["machine_bytes"] = s.machine_bytes;
  d["persistent_bytes"] = s.persistent_bytes;
  d["persistent_is_remote"] = s.persistent_is_remote();
  d["is_signed"] = !s.signing_key.empty();
  return d;
}

py::object location(const std::string& tier) {
  const cache::Store* store = ProgramCache::get().tier_store(parse_tier(tier));
  return store ? py::object(py::str(store->describe())) : py::none();
}

py::list entries(const std::string& tier) {
  std::vector<cache::StoredEntry> found;
  {
    const py::gil_scoped_release release;
    found = store_of(tier).list();
  }
  py::list out;
  for (const cache::StoredEntry& e : found) out.append(py::make_tuple(e.name, e.size, e.last_used));
  return out;
}

// What an entry's bytes hold; only "problem" when they are unusable.
py::dict decoded(std::string_view content, const std::string& name) {
  cache::EntryProblem problem;
  cache::EntryView entry{};
  {
    const py::gil_scoped_release release;
    const cache::DecodedEntry d =
        cache::decode_entry(content, nullptr, ProgramCache::get().settings().signing_key);
    problem = d.problem;
    if (d) {
      entry = d.entry;
      const cache::EntryKey key(entry.kind, std::string(entry.scope), std::string(entry.material));
      if (key.name() != name) problem = cache::EntryProblem::kKeyMismatch;
    }
  }
  py::dict d;
  if (problem != cache::EntryProblem::kNone) {
    d["problem"] = cache::to_string(problem);
    return d;
  }
  d["problem"] = "";
  d["kind"] = cache::to_string(entry.kind);
  d["scope"] = to_bytes(entry.scope);
  d["material"] = to_bytes(entry.material);
  d["is_signed"] = entry.is_signed;
  return d;
}

// None when there is no such entry.
py::object entry(const std::string& tier, const std::string& name, bool with_content) {
  std::optional<cache::Blob> content;
  {
    const py::gil_scoped_release release;
    content = store_of(tier).peek(name);
  }
  if (!content) return py::none();
  py::dict d = decoded(content->bytes(), name);
  if (with_content) d["content"] = to_bytes(content->bytes());
  return d;
}

py::dict verify(const std::string& tier) {
  std::map<std::string, cache::EntryProblem> problems;
  {
    const py::gil_scoped_release release;
    store_of(tier);
    problems = ProgramCache::get().verify(parse_tier(tier));
  }
  py::dict d;
  for (const auto& [name, problem] : problems) d[name.c_str()] = cache::to_string(problem);
  return d;
}

py::dict prune(const std::string& tier, uint64_t max_bytes) {
  cache::PruneResult r;
  {
    const py::gil_scoped_release release;
    r = store_of(tier).prune(max_bytes);
  }
  py::dict d;
  d["entries_removed"] = r.entries_removed;
  d["bytes_removed"] = r.bytes_removed;
  d["entries_kept"] = r.entries_kept;
  d["bytes_kept"] = r.bytes_kept;
  d["leftovers_removed"] = r.leftovers_removed;
  return d;
}

// Copies a file's entries to the tiers that are kept. Returns how many, and the problems of the
// others, by name.
py::tuple import_archive(const std::string& path, const Members& members) {
  uint64_t imported = 0;
  std::map<std::string, std::string> problems;
  {
    const py::gil_scoped_release release;
    ProgramCache& programs = ProgramCache::get();
    cache::Archive archive(path, to_members(members), !programs.settings().signing_key.empty());
    for (const cache::StoredEntry& e : archive.list()) {
      const std::optional<cache::Blob> content = archive.get(e.name);
      if (!content) continue;
      const cache::EntryProblem problem = programs.import_entry(e.name, content->bytes());
      if (problem == cache::EntryProblem::kNone) {
        ++imported;
      } else {
        problems[e.name] = cache::to_string(problem);
      }
    }
  }
  return py::make_tuple(imported, problems);
}

}  // namespace

py::bytes to_bytes(std::string_view text) { return {text.data(), text.size()}; }

std::vector<cache::ArchiveMember> to_members(const Members& members) {
  std::vector<cache::ArchiveMember> out;
  out.reserve(members.size());
  for (const auto& [name, offset, size] : members) out.push_back({name, offset, size});
  return out;
}

void bind_cache_tools(py::module_& m) {
  host_cache();
  m.def("set_remote_stores", &set_remote_stores, py::arg("open"));
  m.def("leave_python", &leave_python);
  m.def("parse_bytes", &environment::parse_bytes, py::arg("name"), py::arg("text"));
  m.def("cache_settings", &settings);
  m.def("cache_location", &location, py::arg("tier"));
  m.def("cache_entries", &entries, py::arg("tier"));
  m.def("cache_entry", &entry, py::arg("tier"), py::arg("name"), py::arg("with_content") = false);
  m.def(
      "cache_remove",
      [](const std::string& tier, const std::string& name) {
        const py::gil_scoped_release release;
        store_of(tier).remove(name);
      },
      py::arg("tier"), py::arg("name"));
  m.def("cache_verify", &verify, py::arg("tier"));
  m.def("cache_prune", &prune, py::arg("tier"), py::arg("max_bytes"));
  m.def(
      "cache_clear",
      [](const std::string& tier) {
        const py::gil_scoped_release release;
        store_of(tier);
        return ProgramCache::get().clear(parse_tier(tier));
      },
      py::arg("tier"));
  m.def("cache_import_archive", &import_archive, py::arg("path"), py::arg("members"));
  m.def(
      "cache_flush",
      [](double seconds) {
        const py::gil_scoped_release release;
        return ProgramCache::get().flush(
            std::chrono::milliseconds(static_cast<int64_t>(seconds * 1e3)));
      },
      py::arg("seconds"));
}

}  // namespace torch_tpu::bindings
