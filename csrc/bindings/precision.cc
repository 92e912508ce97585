#include "eager/precision.h"

#include <torch/csrc/utils/pybind.h>

#include "bindings/bindings.h"

namespace py = pybind11;

namespace torch_tpu::bindings {

namespace {

using eager::Precision;

// The names of torch.set_float32_matmul_precision.
const char* name_of(Precision precision) {
  switch (precision) {
    case Precision::kDefault:
      return "medium";
    case Precision::kHigh:
      return "high";
    case Precision::kHighest:
      return "highest";
  }
  return "highest";
}

Precision parse(const std::string& name) {
  for (const Precision p : {Precision::kDefault, Precision::kHigh, Precision::kHighest}) {
    if (name == name_of(p)) return p;
  }
  throw py::value_error("precision: expected 'medium', 'high' or 'highest', got '" + name + "'");
}

std::optional<std::string> name_or_none(std::optional<Precision> precision) {
  if (!precision) return std::nullopt;
  return name_of(*precision);
}

}  // namespace

void bind_precision(py::module_& m) {
  m.def("current_precision", [] { return name_of(eager::current_precision()); });
  m.def("thread_precision", [] { return name_or_none(eager::thread_precision()); });
  m.def(
      "set_thread_precision",
      [](const std::optional<std::string>& name) {
        eager::set_thread_precision(name ? std::optional(parse(*name)) : std::nullopt);
      },
      py::arg("precision"));
  m.def("set_precision_emulated", &eager::set_precision_emulated, py::arg("emulated"));
  m.def("set_slow_precision_notice", [](py::function notice) {
    const std::shared_ptr<py::function> keep(
        std::make_unique<py::function>(std::move(notice)).release(), [](py::function*) {});
    eager::set_slow_precision_notice([keep](Precision precision) {
      const py::gil_scoped_acquire gil;
      (*keep)(name_of(precision));
    });
  });
}

}  // namespace torch_tpu::bindings
