// Graphs exported as programs, and programs run that were compiled ahead of time.
#include <torch/csrc/utils/pybind.h>

#include "bindings/bindings.h"
#include "bindings/options.h"
#include "compile/export_graph.h"
#include "compile/loaded_program.h"
#include "compile/lowering_target.h"
#include "eager/dispatch.h"
#include "pjrt/plugin.h"
#include "runtime/compile_service.h"
#include "runtime/host_cpu.h"
#include "runtime/runtime.h"

namespace py = pybind11;

namespace torch_tpu::bindings {

namespace {

using compile::LoadedProgram;
using PyType = std::pair<at::ScalarType, std::vector<int64_t>>;
using PyInput = std::tuple<at::ScalarType, std::vector<int64_t>, std::vector<int64_t>>;
using PyPlaces = std::vector<std::pair<size_t, size_t>>;

std::pair<std::string, int64_t> export_graph(const std::vector<PyInput>& inputs,
                                             const py::function& body, bool for_tpu) {
  std::vector<compile::ExportInput> types;
  for (const auto& [dtype, sizes, strides] : inputs) types.push_back({dtype, sizes, strides});
  const auto call_body = [&](const std::vector<at::Tensor>& given) {
    compile::ExportResults results;
    PyPlaces places;
    std::tie(results.outputs, places) =
        body(given).cast<std::pair<std::vector<at::Tensor>, PyPlaces>>();
    for (const auto& [output, input] : places) results.aliases.push_back({output, input});
    return results;
  };
  try {
    compile::ExportedGraph graph = compile::export_graph(
        types, call_body, for_tpu ? lowering::Platform::kTpu : lowering::Platform::kCpu);
    return {std::move(graph.text), graph.random_count};
  } catch (const py::error_already_set&) {
    throw;
  } catch (const c10::Error&) {
    throw;
  } catch (...) {
    eager::rethrow_as_torch_error("export");
  }
}

std::vector<LoadedProgram::Type> types_from(const std::vector<PyType>& list) {
  std::vector<LoadedProgram::Type> types;
  for (const auto& [dtype, sizes] : list) types.push_back({dtype, sizes});
  return types;
}

py::dict device_identity() {
  std::string plugin, platform, kind, host;
  {
    const py::gil_scoped_release release;
    runtime::Runtime& rt = runtime::Runtime::get();
    plugin = rt.client().plugin()->identity();
    platform = rt.platform();
    kind = rt.device(0).kind;
    if (rt.is_cpu()) host = runtime::host_cpu_identity();
  }
  py::dict d;
  d["plugin"] = plugin;
  d["platform"] = platform;
  d["device_kind"] = kind;
  d["host"] = host;
  return d;
}

}  // namespace

void bind_export(py::module_& m) {
  m.def("export_graph", &export_graph, py::arg("inputs"), py::arg("body"), py::arg("for_tpu"));
  m.def(
      "exchange_lowering_target",
      [](std::optional<bool> for_tpu) -> std::optional<bool> {
        using lowering::Platform;
        std::optional<Platform> target;
        if (for_tpu) target = *for_tpu ? Platform::kTpu : Platform::kCpu;
        const std::optional<Platform> before = compile::exchange_lowering_target(target);
        return before ? std::optional(*before == Platform::kTpu) : std::nullopt;
      },
      py::arg("for_tpu"));
  m.def("device_identity", &device_identity);
  m.def(
      "check_compile_options",
      [](const py::dict& options) {
        const pjrt::Options converted = options_from(options);
        const py::gil_scoped_release release;
        runtime::check_options(converted);
      },
      py::arg("options"));
  py::class_<LoadedProgram, std::shared_ptr<LoadedProgram>>(m, "LoadedProgram")
      .def(py::init([](std::string name, const py::bytes& bytes, const std::vector<PyType>& inputs,
                       std::vector<std::string> input_names, const std::vector<PyType>& outputs,
                       const PyPlaces& writes, int64_t random_count) {
             std::vector<LoadedProgram::Write> places;
             for (const auto& [output, input] : writes) places.push_back({output, input});
             const std::string_view view = bytes;
             const py::gil_scoped_release release;
             return std::make_shared<LoadedProgram>(std::move(name), view, types_from(inputs),
                                                    std::move(input_names), types_from(outputs),
                                                    places, random_count);
           }),
           py::arg("name"), py::arg("executable"), py::arg("inputs"), py::arg("input_names"),
           py::arg("outputs"), py::arg("writes"), py::arg("random_count"))
      .def(
          "__call__",
          [](const LoadedProgram& program, const std::vector<at::Tensor>& inputs) {
            const py::gil_scoped_release release;
            return eager::with_torch_errors("[aot] run", [&] { return program(inputs); });
          },
          py::arg("inputs"));
}

}  // namespace torch_tpu::bindings
