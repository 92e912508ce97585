// Compiled graphs, for the Dynamo backend.
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include "bindings/bindings.h"
#include "bindings/options.h"
#include "compile/compiled_graph.h"
#include "compile/control_flow.h"
#include "compile/tensor_form.h"
#include "eager/dispatch.h"
#include "eager/trace.h"

namespace py = pybind11;

namespace torch_tpu::bindings {

namespace {

using compile::CompiledGraph;
using Values = CompiledGraph::Values;

c10::IValue from_python(PyObject* object) {
  if (THPVariable_Check(object)) return THPVariable_Unpack(object);
  if (object == Py_None) return {};
  if (PyBool_Check(object)) return object == Py_True;
  if (PyFloat_Check(object)) return PyFloat_AS_DOUBLE(object);
  const int64_t number = PyLong_AsLongLong(object);
  if (number == -1 && PyErr_Occurred()) throw py::error_already_set();
  return number;
}

py::object to_python(c10::IValue value) {
  if (value.isTensor()) {
    return py::reinterpret_steal<py::object>(THPVariable_Wrap(std::move(value).toTensor()));
  }
  if (value.isNone()) return py::none();
  if (value.isBool()) return py::bool_(value.toBool());
  if (value.isDouble()) return py::float_(value.toDouble());
  return py::int_(value.toInt());
}

Values values_from(const py::list& list) {
  Values values;
  values.reserve(list.size());
  for (size_t i = 0; i < list.size(); ++i) {
    values.push_back(from_python(PyList_GET_ITEM(list.ptr(), static_cast<Py_ssize_t>(i))));
  }
  return values;
}

// The list's objects, in another list; it is empty afterwards.
py::object taken_from(const py::list& list) {
  const Py_ssize_t size = PyList_GET_SIZE(list.ptr());
  auto taken = py::reinterpret_steal<py::object>(PyList_GetSlice(list.ptr(), 0, size));
  if (!taken || PyList_SetSlice(list.ptr(), 0, size, nullptr) != 0) throw py::error_already_set();
  return taken;
}

// Of a list that lives longer.
compile::BorrowedValues borrowed_from(const py::object& list) {
  const Py_ssize_t size = PyList_GET_SIZE(list.ptr());
  compile::BorrowedValues values(static_cast<size_t>(size));
  for (Py_ssize_t i = 0; i < size; ++i) {
    PyObject* const object = PyList_GET_ITEM(list.ptr(), i);
    if (THPVariable_Check(object)) {
      values.borrow(THPVariable_Unpack(object));
    } else {
      values.add_plain(from_python(object));
    }
  }
  return values;
}

py::list list_from(Values values) {
  py::list out(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    PyList_SET_ITEM(out.ptr(), static_cast<Py_ssize_t>(i),
                    to_python(std::move(values[i])).release().ptr());
  }
  return out;
}

// The results of a call with these inputs.
py::list list_from(CompiledGraph::CallResults results, const py::object& inputs) {
  py::list out(results.size());
  for (size_t i = 0; i < results.size(); ++i) {
    const int input = results[i].input;
    PyObject* const object = input >= 0 ? Py_NewRef(PyList_GET_ITEM(inputs.ptr(), input))
                                        : to_python(std::move(results[i].value)).release().ptr();
    PyList_SET_ITEM(out.ptr(), static_cast<Py_ssize_t>(i), object);
  }
  return out;
}

// A Python callable that C++ code may keep and destroy without the GIL.
std::shared_ptr<py::object> shared_object(py::object object) {
  return {std::make_unique<py::object>(std::move(object)).release(), [](py::object* p) {
            const py::gil_scoped_acquire gil;
            const std::unique_ptr<py::object> owner(p);
          }};
}

CompiledGraph::Body body_from(py::object function) {
  return [function = shared_object(std::move(function))](const Values& inputs) {
    const py::gil_scoped_acquire gil;
    const py::list results = (*function)(list_from(inputs));
    return values_from(results);
  };
}

// The functions for the bodies of control flow: called inside of a CompiledGraph's body.
void bind_control_flow(py::module_& m) {
  m.def(
      "trace_cond",
      [](const at::Tensor& predicate, py::object on_true, py::object on_false,
         const py::list& operands) {
        return list_from(compile::cond(predicate, body_from(std::move(on_true)),
                                       body_from(std::move(on_false)), values_from(operands)));
      },
      py::arg("predicate"), py::arg("on_true"), py::arg("on_false"), py::arg("operands"));
  m.def(
      "trace_while_loop",
      [](py::object condition, py::object body, const py::list& carried, const py::list& others) {
        return list_from(compile::while_loop(body_from(std::move(condition)),
                                             body_from(std::move(body)), values_from(carried),
                                             values_from(others)));
      },
      py::arg("condition"), py::arg("body"), py::arg("carried"), py::arg("others"));
  m.def(
      "trace_scan",
      [](py::object body, const py::list& carried, const py::list& slices, const py::list& others) {
        return list_from(compile::scan(body_from(std::move(body)), values_from(carried),
                                       values_from(slices), values_from(others)));
      },
      py::arg("body"), py::arg("carried"), py::arg("slices"), py::arg("others"));
  m.def("trace_random_position", &compile::random_position, py::arg("device"));
  m.def(
      "trace_at_random_position",
      [](const at::Tensor& position, py::object body, const py::list& inputs) {
        return list_from(
            compile::at_random_position(position, body_from(std::move(body)), values_from(inputs)));
      },
      py::arg("position"), py::arg("body"), py::arg("inputs"));
  m.def("is_tracing", [] { return eager::Trace::current() != nullptr; });
}

}  // namespace

void bind_compile(py::module_& m) {
  bind_control_flow(m);
  m.def("share_version", &compile::share_version, py::arg("tensor"), py::arg("same"));
  py::class_<CompiledGraph, std::shared_ptr<CompiledGraph>>(m, "CompiledGraph")
      .def(py::init([](std::string name, py::object body, const py::list& constants,
                       std::vector<bool> on_host, const py::dict& options, std::string origin) {
             return std::make_shared<CompiledGraph>(std::move(name), body_from(std::move(body)),
                                                    values_from(constants), std::move(on_host),
                                                    options_from(options), std::move(origin));
           }),
           py::arg("name"), py::arg("body"), py::arg("constants"), py::arg("on_host"),
           py::arg("options") = py::dict(), py::arg("origin") = "")
      .def(
          "__call__",
          [](CompiledGraph& graph, const py::list& inputs) {
            // The caller's references go, so that what nobody else holds goes with the call.
            const py::object kept = taken_from(inputs);
            compile::BorrowedValues values = borrowed_from(kept);
            CompiledGraph::CallResults results;
            {
              const py::gil_scoped_release release;
              try {
                results = graph(std::move(values));
              } catch (const py::error_already_set&) {
                throw;
              } catch (const c10::Error&) {
                throw;
              } catch (...) {
                eager::rethrow_as_torch_error("torch.compile");
                throw;
              }
            }
            return list_from(std::move(results), kept);
          },
          py::arg("inputs"))
      .def_property_readonly("num_programs", &CompiledGraph::num_programs)
      .def("texts", [](const CompiledGraph& graph) {
        std::vector<std::string> out;
        for (const auto& program : graph.programs()) out.push_back(program->text());
        return out;
      });
}

}  // namespace torch_tpu::bindings
