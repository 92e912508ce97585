#include "eager/dry_run.h"

#include <torch/csrc/utils/pybind.h>

#include "bindings/bindings.h"
#include "eager/dry_run_pause.h"
#include "eager/moving_views.h"

namespace py = pybind11;

namespace torch_tpu::bindings {

namespace {

// Why the program could not be compiled; nullopt when it was. Waits for it.
std::optional<std::string> wait_for(runtime::CompiledProgram& program) {
  const py::gil_scoped_release release;
  try {
    static_cast<void>(program.executable());
    return std::nullopt;
  } catch (const std::exception& error) {
    return error.what();
  }
}

bool is_hollow(const at::Tensor& tensor) {
  // PyTorch's fake tensors are of the device, but have no storage there.
  if (!eager::is_tpu(tensor) || !tensor.has_storage() || !tensor.storage().data_ptr().get()) {
    return false;
  }
  const runtime::DeviceBufferPtr buffer = eager::device_storage(tensor).buffer();
  return buffer && buffer->is_hollow();
}

}  // namespace

void bind_dry_run(py::module_& m) {
  py::class_<eager::DryRun>(m, "DryRun")
      .def(py::init<>())
      .def("begin", &eager::DryRun::begin)
      .def("end", &eager::DryRun::end)
      .def("__len__", [](const eager::DryRun& run) { return run.programs().size(); })
      .def(
          "wait",
          [](const eager::DryRun& run, size_t place) {
            // A copy: it stays, whatever another thread does with the list.
            const runtime::CompiledProgramPtr program = run.programs().at(place);
            return wait_for(*program);
          },
          py::arg("place"));
  py::class_<eager::DryRunPause>(m, "DryRunPause")
      .def(py::init<>())
      .def("__enter__", &eager::DryRunPause::begin)
      .def("__exit__", [](eager::DryRunPause& pause, const py::args&) { pause.end(); });
  m.def("in_dry_run", [] { return eager::DryRun::current() != nullptr; });
  m.def("is_hollow", &is_hollow, py::arg("tensor"));
  m.def("moving_views_epoch", &eager::moving_views_epoch);
  m.def("forget_failed_programs", &eager::forget_failed_programs);
}

}  // namespace torch_tpu::bindings
