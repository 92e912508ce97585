// Training steps as programs, for torch_tpu/tpu/_compile_step.py.
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>

#include "bindings/bindings.h"
#include "bindings/options.h"
#include "compile/step_trace.h"
#include "eager/dispatch.h"

namespace py = pybind11;

namespace torch_tpu::bindings {

namespace {

using compile::StepProgram;
using compile::StepTrace;

// What a traced step took for granted of Python's objects. Checked before every call.
class StepGuards {
 public:
  enum class Gradient { kAny, kNone, kSame };

  // The entry of the dictionary is this object, or one that equals it.
  void add(py::dict dictionary, py::object key, py::object value, bool equal) {
    entries_.push_back({std::move(dictionary), std::move(key), std::move(value), equal});
  }
  // The dictionary begins with these entries: an optimizer's state, of which no key is looked up,
  // since hashing a tensor is a call of Python's.
  void add_state(const py::dict& dictionary) {
    State state{dictionary, {}};
    for (const auto& [key, value] : dictionary) {
      state.entries.emplace_back(py::reinterpret_borrow<py::object>(key),
                                 py::reinterpret_borrow<py::object>(value));
    }
    states_.push_back(std::move(state));
  }
  // The tensor has the storage, the flag and the gradient that it has now.
  void add_tensor(const at::Tensor& t, Gradient gradient) {
    tensors_.push_back({t, t.storage().unsafeGetStorageImpl(), t.requires_grad(), gradient,
                        gradient == Gradient::kSame ? storage_of(t.grad()) : nullptr});
  }

  // Whether an object has been replaced, and not just a flag changed: they will not hold again.
  bool obsolete() const {
    return std::any_of(entries_.begin(), entries_.end(),
                       [](const Entry& e) {
                         PyObject* const value = e.value.ptr();
                         return !e.equal && !PyBool_Check(value) &&
                                PyDict_GetItemWithError(e.dictionary.ptr(), e.key.ptr()) != value;
                       }) ||
           std::any_of(tensors_.begin(), tensors_.end(),
                       [](const TensorEntry& e) { return storage_of(e.tensor) != e.storage; }) ||
           std::any_of(states_.begin(), states_.end(),
                       [](const State& state) { return !state.holds(); });
  }
  // What has changed, in words; nullopt when nothing has.
  std::optional<std::string> check() const {
    for (const Entry& e : entries_) {
      PyObject* const now = PyDict_GetItemWithError(e.dictionary.ptr(), e.key.ptr());
      if (now == e.value.ptr()) continue;
      const int same = now && e.equal ? PyObject_RichCompareBool(now, e.value.ptr(), Py_EQ) : 0;
      if (PyErr_Occurred()) throw py::error_already_set();
      if (same == 1) continue;
      const auto key = py::str(e.key).cast<std::string>();
      if (!now || !e.equal) return key + " is another one";
      return key + " is " + py::repr(now).cast<std::string>() + ", was " +
             py::repr(e.value).cast<std::string>();
    }
    for (const State& state : states_) {
      if (!state.holds()) return "the state of a parameter is another one";
    }
    for (const TensorEntry& e : tensors_) {
      const auto about = [&](const char* what) {
        std::string sizes;
        for (const int64_t n : e.tensor.sizes())
          sizes += (sizes.empty() ? "" : ", ") + std::to_string(n);
        return std::string(what) + " of a tensor of (" + sizes + ")";
      };
      if (storage_of(e.tensor) != e.storage) return about("the data");
      if (e.tensor.requires_grad() != e.requires_grad) return about("requires_grad");
      if (e.gradient == Gradient::kAny) continue;
      const at::Tensor& grad = e.tensor.grad();
      if (grad.defined() ? e.gradient == Gradient::kNone || storage_of(grad) != e.grad
                         : e.gradient == Gradient::kSame) {
        return about("the gradient");
      }
    }
    return std::nullopt;
  }

 private:
  struct Entry {
    py::dict dictionary;
    py::object key, value;
    bool equal;
  };
  struct State {
    py::dict dictionary;
    std::vector<std::pair<py::object, py::object>> entries;

    bool holds() const {
      Py_ssize_t place = 0;
      PyObject *key = nullptr, *value = nullptr;
      return std::all_of(entries.begin(), entries.end(), [&](const auto& entry) {
        return PyDict_Next(dictionary.ptr(), &place, &key, &value) && key == entry.first.ptr() &&
               value == entry.second.ptr();
      });
    }
  };
  struct TensorEntry {
    at::Tensor tensor;
    const c10::StorageImpl* storage;
    bool requires_grad;
    Gradient gradient;
    const c10::StorageImpl* grad;
  };

  static const c10::StorageImpl* storage_of(const at::Tensor& t) {
    return t.storage().unsafeGetStorageImpl();
  }

  std::vector<Entry> entries_;
  std::vector<State> states_;
  std::vector<TensorEntry> tensors_;
};

// The objects of a class that Python's garbage collector knows: all there are of some size.
py::list live_objects(const py::args& classes) {
  const py::list all = py::module_::import("gc").attr("get_objects")();
  py::list out;
  for (const py::handle object : all) {
    for (const py::handle c : classes) {
      if (!PyType_IsSubtype(Py_TYPE(object.ptr()), reinterpret_cast<PyTypeObject*>(c.ptr())))
        continue;
      out.append(object);
      break;
    }
  }
  return out;
}

template <typename Body>
auto as_torch_errors(Body&& body) -> decltype(body()) {
  try {
    return body();
  } catch (const py::error_already_set&) {
    throw;
  } catch (const c10::Error&) {
    throw;
  } catch (...) {
    eager::rethrow_as_torch_error("torch.tpu.compile_step");
    throw;
  }
}

}  // namespace

void bind_compile_step(py::module_& m) {
  m.def("live_objects", &live_objects);
  py::class_<StepProgram, std::shared_ptr<StepProgram>>(m, "StepProgram")
      .def(
          "run",
          [](const StepProgram& program, const std::vector<at::Tensor>& inputs,
             const std::vector<double>& numbers, const std::optional<std::string>& new_because) {
            return as_torch_errors([&] { return program.run(inputs, numbers, new_because); });
          },
          py::arg("inputs"), py::arg("numbers"), py::arg("new_because") = std::nullopt)
      .def("wait",
           [](const StepProgram& program) {
             as_torch_errors([&] {
               const py::gil_scoped_release release;
               if (program.compiled()) static_cast<void>(program.compiled()->executable());
             });
           })
      .def("why_not", &StepProgram::why_not)
      .def_property_readonly("has_parted", &StepProgram::has_parted)
      .def_property_readonly("num_donated", &StepProgram::num_donated)
      .def_property_readonly("num_outputs", &StepProgram::num_outputs)
      .def("text", [](const StepProgram& program) {
        return program.compiled() ? program.compiled()->text() : std::string();
      });
  py::class_<StepTrace>(m, "StepTrace")
      .def(py::init<std::vector<at::Tensor>>(), py::arg("inputs"))
      .def("begin", &StepTrace::begin)
      .def("pause", &StepTrace::pause)
      .def("end", &StepTrace::end)
      .def(
          "finish",
          [](StepTrace& trace, const std::vector<at::Tensor>& results,
             const std::vector<at::Tensor>& kept, const py::dict& options, bool writes,
             const StepTrace::Gradients& gradients) {
            return as_torch_errors([&] {
              return std::const_pointer_cast<StepProgram>(
                  trace.finish(results, kept, options_from(options), writes, gradients));
            });
          },
          py::arg("results"), py::arg("kept"), py::arg("options") = py::dict(),
          py::arg("writes") = true, py::arg("gradients") = StepTrace::Gradients())
      .def(
          "number_input",
          [](StepTrace& trace, bool is_double) {
            return trace.number_input(is_double ? at::kDouble : at::kFloat);
          },
          py::arg("is_double"))
      .def(
          "share_equal",
          [](StepTrace& trace, const std::vector<at::Tensor>& tensors) {
            as_torch_errors([&] { trace.share_equal(tensors); });
          },
          py::arg("tensors"))
      .def_static("barrier", &StepTrace::barrier, py::arg("tensors"))
      .def("made_here", &StepTrace::made_here, py::arg("tensor"))
      .def("has_taken_in", &StepTrace::has_taken_in, py::arg("tensor"))
      .def_property_readonly("refusal", [](const StepTrace& trace) { return trace.refusal(); });
  py::class_<StepGuards>(m, "StepGuards")
      .def(py::init<>())
      .def("add", &StepGuards::add, py::arg("dictionary"), py::arg("key"), py::arg("value"),
           py::arg("equal"))
      .def("add_state", &StepGuards::add_state, py::arg("dictionary"))
      .def(
          "add_tensor",
          [](StepGuards& guards, const at::Tensor& t, const std::string& gradient) {
            guards.add_tensor(t, gradient == "any"    ? StepGuards::Gradient::kAny
                                 : gradient == "none" ? StepGuards::Gradient::kNone
                                                      : StepGuards::Gradient::kSame);
          },
          py::arg("tensor"), py::arg("gradient"))
      .def("obsolete", &StepGuards::obsolete)
      .def("check", &StepGuards::check);
}

}  // namespace torch_tpu::bindings
