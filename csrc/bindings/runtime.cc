#include "runtime/runtime.h"

#include <torch/csrc/utils/pybind.h>

#include "bindings/autograd_threads.h"
#include "bindings/bindings.h"
#include "eager/device_context.h"
#include "pjrt/process_end.h"
#include "runtime/batch.h"
#include "runtime/compile_service.h"
#include "runtime/memory.h"
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

runtime::Runtime& started() {
  const py::gil_scoped_release release;
  return runtime::Runtime::get();
}

const pjrt::Device& device(int index) {
  runtime::Runtime& rt = started();
  eager::check_device(index);
  return rt.device(index);
}

// What was dispatched is counted only when it has run.
runtime::Statistics& settled_statistics() {
  if (runtime::Runtime::initialized() && !runtime::Runtime::in_bad_fork()) {
    for (int i = 0; i < runtime::Runtime::get().num_devices(); ++i) runtime::drain_queue(i);
  }
  return runtime::statistics();
}

py::dict statistics() {
  const runtime::Statistics& s = settled_statistics();
  py::dict d;
  d["ops"] = s.ops.load();
  d["programs"] = s.programs.load();
  d["compiles"] = s.compiles.load();
  d["loads"] = s.loads.load();
  d["cache_hits"] = s.cache_hits.load();
  d["load_seconds"] = static_cast<double>(s.load_ns.load()) * 1e-9;
  d["compile_seconds"] = static_cast<double>(s.compile_ns.load()) * 1e-9;
  d["fallbacks"] = py::cast(s.fallbacks());
  return d;
}

// The end of the process: what is still running may write to memory that is about to go.
void finish() {
  const py::gil_scoped_release release;
  if (!runtime::Runtime::initialized() || runtime::Runtime::in_bad_fork()) return;
  for (int i = 0; i < runtime::Runtime::get().num_devices(); ++i) {
    try {
      runtime::synchronize(i);
    } catch (const std::exception&) {
      // Whoever wanted the result has been told, or will not look any more.
    }
  }
  runtime::finish_compiling();
  wait_for_autograd_threads();
  pjrt::leave_compilers_at_exit();  // for the threads that are not waited for
}

}  // namespace

void bind_runtime(py::module_& m) {
  m.def("set_plugin_search", [](py::function search) {
    const auto keep = immortal(std::move(search));
    runtime::Runtime::set_plugin_search([keep] {
      const py::gil_scoped_acquire gil;
      const auto found =
          (*keep)().cast<std::pair<std::vector<std::string>, std::vector<std::string>>>();
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
  m.def("initialize", [] { started(); });
  m.def("is_initialized", &runtime::Runtime::initialized);
  m.def("is_in_bad_fork", &runtime::Runtime::in_bad_fork);
  m.def("finish", &finish);
  m.def("plugin_path", [] { return started().plugin().path; });
  m.def("platform_name", [] { return started().platform(); });
  m.def("platform_version", [] { return started().client().platform_version(); });
  m.def("device_kind", [](int index) { return device(index).kind; }, py::arg("device"));
  m.def(
      "total_memory",
      [](int index) {
        device(index);
        return eager::total_memory(index);
      },
      py::arg("device"));
  m.def("statistics", &statistics);
  m.def("reset_statistics", [] { settled_statistics().reset(); });
  m.def(
      "set_memory_limit",
      [](int index, int64_t nbytes) {
        device(index);
        runtime::set_memory_limit(index, nbytes);
      },
      py::arg("device"), py::arg("nbytes"));
  m.def(
      "synchronize",
      [](int index) {
        const py::gil_scoped_release release;
        eager::check_device(index);
        if (runtime::Runtime::initialized()) runtime::synchronize(index);
      },
      py::arg("device"));
}

}  // namespace torch_tpu::bindings
