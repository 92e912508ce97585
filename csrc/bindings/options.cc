#include "bindings/options.h"

namespace py = pybind11;

namespace torch_tpu::bindings {

namespace {

pjrt::Option option_from(const std::string& name, py::handle value) {
  // Python's bool is an int: the order matters.
  if (py::isinstance<py::bool_>(value)) return value.cast<bool>();
  if (py::isinstance<py::int_>(value)) return value.cast<int64_t>();
  if (py::isinstance<py::float_>(value)) return value.cast<float>();
  if (py::isinstance<py::str>(value)) return value.cast<std::string>();
  throw py::type_error("[compile options] expected a bool, int, float or str for " + name +
                       ", got " + py::repr(value).cast<std::string>());
}

}  // namespace

pjrt::Options options_from(const py::dict& options) {
  pjrt::Options out;
  for (const auto& [key, value] : options) {
    const std::string name = py::str(key).cast<std::string>();
    out.emplace(name, option_from(name, value));
  }
  return out;
}

}  // namespace torch_tpu::bindings
