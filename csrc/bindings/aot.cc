#include <pybind11/functional.h>
#include <torch/csrc/utils/pybind.h>
#include <unistd.h>

#include "bindings/bindings.h"
#include "bindings/options.h"
#include "pjrt/discovery.h"
#include "pjrt/error.h"
#include "pjrt/executable.h"
#include "pjrt/flag_names.h"
#include "pjrt/topology.h"
#include "runtime/compile_service.h"
#include "runtime/refused_program.h"

namespace py = pybind11;

namespace torch_tpu::bindings {

namespace {

using pjrt::Topology;

struct AotProgram {
  // Of a program for this process's own device; the plugin looks into it for the costs.
  std::shared_ptr<pjrt::Executable> loaded;
  pjrt::CompiledProgram program;
};

// The names of PJRT_Error_Code, for programs that look at them.
const char* code_name(int code) {
  switch (code) {
    case PJRT_Error_Code_INVALID_ARGUMENT:
      return "INVALID_ARGUMENT";
    case PJRT_Error_Code_RESOURCE_EXHAUSTED:
      return "RESOURCE_EXHAUSTED";
    case PJRT_Error_Code_UNIMPLEMENTED:
      return "UNIMPLEMENTED";
    case PJRT_Error_Code_FAILED_PRECONDITION:
      return "FAILED_PRECONDITION";
    case PJRT_Error_Code_NOT_FOUND:
      return "NOT_FOUND";
    case PJRT_Error_Code_INTERNAL:
      return "INTERNAL";
    default:
      return "UNKNOWN";
  }
}

// Calls `function` without the interpreter lock and raises `_C.AotError` for what it throws.
template <typename Function>
auto call_compiler(Function function) {
  try {
    const py::gil_scoped_release release;
    return function();
  } catch (const pjrt::Error& error) {
    const py::object type = py::module_::import("torch_tpu._C").attr("AotError");
    py::object raised = type(error.what());
    raised.attr("code") = code_name(error.code());
    PyErr_SetObject(type.ptr(), raised.ptr());
  }
  throw py::error_already_set();
}

// The compiler has threads of its own, which a forked child does not get: it would wait for them
// for ever.
void refuse_forked_child() {
  static const pid_t loaded_in = getpid();
  if (getpid() != loaded_in) {
    throw pjrt::Error(PJRT_Error_Code_FAILED_PRECONDITION,
                      "[aot] the compiler was loaded before this process was forked, and does not "
                      "work in the child; start processes with the method \"spawn\"");
  }
}

std::unique_ptr<Topology> topology(const std::string& libtpu, const std::string& name) {
  return call_compiler([&] {
    refuse_forked_child();
    const bool tpu_attached = pjrt::tpu_hardware_present({});
    return std::make_unique<Topology>(pjrt::load_compiler(libtpu, tpu_attached), name);
  });
}

AotProgram compile(const Topology& topology, const std::string& stablehlo, int num_replicas,
                   int num_partitions, const py::dict& flags) {
  pjrt::Options overrides = options_from(flags);
  return call_compiler([&] {
    refuse_forked_child();
    pjrt::CompileOptions options;
    options.num_replicas = num_replicas;
    options.num_partitions = num_partitions;
    // Of one device: whichever it will be run on.
    options.portable = num_replicas == 1 && num_partitions == 1;
    options.env_overrides = std::move(overrides);
    return AotProgram{nullptr, topology.compile(stablehlo, options)};
  });
}

// By this process's plugin, for its device.
AotProgram compile_for_device(const std::string& stablehlo, const py::dict& flags) {
  const pjrt::Options options = options_from(flags);
  return call_compiler([&] {
    std::shared_ptr<pjrt::Executable> loaded = runtime::compile_apart(stablehlo, options);
    pjrt::CompiledProgram program = loaded->program();
    return AotProgram{std::move(loaded), std::move(program)};
  });
}

py::dict memory(const AotProgram& aot) {
  const pjrt::MemoryStats stats = call_compiler([&] { return aot.program.memory_stats(); });
  py::dict d;
  d["peak"] = stats.peak;
  d["arguments"] = stats.arguments;
  d["outputs"] = stats.outputs;
  d["aliased"] = stats.aliased;
  d["temporaries"] = stats.temporaries;
  d["generated_code"] = stats.generated_code;
  return d;
}

}  // namespace

void bind_aot(py::module_& m) {
  py::exception<pjrt::Error>(m, "AotError", PyExc_RuntimeError);
  py::class_<AotProgram>(m, "AotProgram")
      .def("serialize",
           [](const AotProgram& aot) {
             return py::bytes(call_compiler([&] { return aot.program.serialize(); }));
           })
      .def("num_outputs",
           [](const AotProgram& aot) {
             return call_compiler([&] { return aot.program.num_outputs(); });
           })
      .def("memory", &memory)
      .def("costs", [](const AotProgram& aot) {
        return call_compiler([&] { return aot.program.cost_analysis(); });
      });
  py::class_<Topology>(m, "AotTopology")
      .def(py::init(&topology), py::arg("libtpu"), py::arg("name"))
      .def_property_readonly("name", &Topology::name)
      .def_property_readonly("device_kind", &Topology::device_kind)
      .def_property_readonly("num_devices", &Topology::num_devices)
      .def_property_readonly("device_memory", &Topology::device_memory)
      .def_property_readonly("plugin", &Topology::plugin)
      .def("compile", &compile, py::arg("stablehlo"), py::arg("num_replicas"),
           py::arg("num_partitions"), py::arg("flags"));
  m.def(
      "keep_refused_program",
      [](const std::string& program) { return runtime::keep_refused_program(program); },
      py::arg("program"));
  m.def("flag_suggestion", &pjrt::flag_suggestion, py::arg("plugin"), py::arg("name"),
        py::arg("refusal"));
  m.def("compile_for_device", &compile_for_device, py::arg("stablehlo"), py::arg("flags"));
}

}  // namespace torch_tpu::bindings
