// What the compilation cache did in this process, and files that its programs may come from.
#include <torch/csrc/utils/pybind.h>

#include "bindings/bindings.h"
#include "bindings/cache_tools.h"
#include "cache/program_cache.h"
#include "eager/program_record.h"
#include "runtime/compile_service.h"
#include "runtime/program_history.h"

namespace py = pybind11;

namespace torch_tpu::bindings {

namespace {

using cache::ProgramCache;
using cache::Tier;

py::dict statistics() {
  const cache::CacheStatistics s = [] {
    const py::gil_scoped_release release;
    return ProgramCache::get().statistics();
  }();
  py::dict tiers;
  for (const Tier tier : {Tier::kArchive, Tier::kMachine, Tier::kPersistent}) {
    const cache::TierStatistics& t = s.tiers[static_cast<size_t>(tier)];
    py::dict d;
    d["hits"] = t.hits;
    d["stores"] = t.stores;
    d["bytes_read"] = t.bytes_read;
    d["bytes_written"] = t.bytes_written;
    d["read_seconds"] = t.read_seconds;
    tiers[cache::to_string(tier)] = d;
  }
  py::dict d;
  d["finds"] = s.finds;
  d["late_hits"] = s.late_hits;
  d["refused_entries"] = s.refused_entries;
  d["tiers"] = tiers;
  d["misses"] = py::cast(s.misses);
  d["waits"] = s.waits;
  d["wait_seconds"] = s.wait_seconds;
  d["dropped_entries"] = s.dropped_entries;
  d["dropped_stores"] = s.dropped_stores;
  return d;
}

// What, whether compiled, seconds, and when (since 1970), of each.
py::list program_history() {
  py::list out;
  for (const runtime::ProgramRecord& r : runtime::ProgramHistory::get().list()) {
    const std::chrono::duration<double> when = r.when.time_since_epoch();
    out.append(py::make_tuple(r.what, r.compiled, r.seconds, when.count()));
  }
  return out;
}

// Lets programs come from a file. Returns how many of its entries were made for this process's
// environment, and the problems of those that are unusable, by name.
py::tuple add_archive(const std::string& path, const Members& members) {
  uint64_t usable = 0;
  std::map<std::string, std::string> problems;
  {
    const py::gil_scoped_release release;
    ProgramCache& programs = ProgramCache::get();
    const std::string& key = programs.settings().signing_key;
    cache::Archive archive(path, to_members(members), !key.empty());
    for (const cache::StoredEntry& e : archive.list()) {
      const std::optional<cache::Blob> content = archive.get(e.name);
      if (!content) continue;
      const cache::DecodedEntry d = cache::decode_entry(content->bytes(), nullptr, key);
      if (!d) {
        problems[e.name] = cache::to_string(d.problem);
      } else if (d.entry.scope == (d.entry.kind == cache::EntryKind::kProgram
                                       ? runtime::program_scope()
                                       : eager::record_scope())) {
        ++usable;
      }
    }
    programs.add_archive(path, to_members(members));
  }
  return py::make_tuple(usable, problems);
}

}  // namespace

void bind_cache(py::module_& m) {
  bind_cache_tools(m);
  m.def("cache_statistics", &statistics);
  m.def("program_history", &program_history);
  m.def("cache_scopes", [] {
    const auto [program, call] = [] {
      const py::gil_scoped_release release;
      return std::pair(runtime::program_scope(), eager::record_scope());
    }();
    py::dict d;
    d[cache::to_string(cache::EntryKind::kProgram)] = to_bytes(program);
    d[cache::to_string(cache::EntryKind::kCall)] = to_bytes(call);
    return d;
  });
  m.def("cache_add_archive", &add_archive, py::arg("path"), py::arg("members"));
}

}  // namespace torch_tpu::bindings
