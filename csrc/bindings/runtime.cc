#include <torch/csrc/utils/pybind.h>

#include "bindings/bindings.h"
#include "runtime/memory.h"
#include "runtime/runtime.h"
#include "runtime/statistics.h"
#include "runtime/work_queue.h"

namespace py = pybind11;

namespace torch_tpu::bindings {

namespace {

// Keeps a Python callable for the life of the process: destroying it after the interpreter has
// ended would crash.
std::shared_ptr<py::function> immortal(py::function f) {
  return {std::make_unique<py::function>(std::move(f)).release(), [](py::function*) {}};
}

py::dict statistics() {
  const runtime::Statistics& s = runtime::statistics();
  py::dict d;
  d["ops"] = s.ops.load();
  d["programs"] = s.programs.load();
  d["compiles"] = s.compiles.load();
  d["loads"] = s.loads.load();
  d["cache_hits"] = s.cache_hits.load();
  d["compile_seconds"] = static_cast<double>(s.compile_ns.load()) * 1e-9;
  d["fallbacks"] = py::cast(s.fallbacks());
  return d;
}

}  // namespace

void bind_runtime(py::module_& m) {
  m.def("set_plugin_search", [](py::function search) {
    const auto keep = immortal(std::move(search));
    runtime::Runtime::set_plugin_search([keep] {
      const py::gil_scoped_acquire gil;
      const auto found = (*keep)().cast<std::pair<std::vector<std::string>, std::vector<std::string>>>();
      pjrt::PluginSearch s;
      s.libtpu = found.first;
      s.cpu = found.second;
      return s;
    });
  });
  m.def("device_count", [] {
    const py::gil_scoped_release release;
    return runtime::Runtime::device_count();
  });
  m.def("initialize", [] {
    const py::gil_scoped_release release;
    runtime::Runtime::get();
  });
  m.def("is_initialized", &runtime::Runtime::initialized);
  m.def("is_in_bad_fork", &runtime::Runtime::in_bad_fork);
  m.def("plugin_path", [] { return runtime::Runtime::get().plugin().path; });
  m.def("plugin_source", [] { return runtime::Runtime::get().plugin().source; });
  m.def("platform_name", [] { return runtime::Runtime::get().platform(); });
  m.def("platform_version", [] { return runtime::Runtime::get().client().platform_version(); });
  m.def("device_kind", [](int device) { return runtime::Runtime::get().device(device).kind; });
  m.def("statistics", &statistics);
  m.def("reset_statistics", [] { runtime::statistics().reset(); });
  m.def("set_memory_limit", &runtime::set_memory_limit);
  m.def("memory_limit", &runtime::memory_limit);
  m.def("synchronize", [](int device) {
    const py::gil_scoped_release release;
    if (runtime::Runtime::initialized()) runtime::synchronize(device);
  });
}

}  // namespace torch_tpu::bindings
