#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/utils/tensor_memoryformats.h>

#include <array>
#include <chrono>

#include "bindings/bindings.h"
#include "eager/device_context.h"
#include "eager/dispatch.h"
#include "eager/generator.h"
#include "eager/program.h"
#include "eager/program_record.h"
#include "eager/trace.h"

namespace py = pybind11;

namespace torch_tpu::bindings {

namespace {

// dtypes, layouts and memory formats are integers in a boxed call.
py::object to_python(const c10::Argument& argument, const c10::IValue& value) {
  if (value.isInt()) {
    c10::TypePtr type = argument.real_type();
    if (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
    const auto borrow = [](auto* object) {
      return py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(object));
    };
    switch (type->kind()) {
      case c10::TypeKind::ScalarTypeType:
        return borrow(torch::getTHPDtype(value.toScalarType()));
      case c10::TypeKind::LayoutType:
        return borrow(torch::getTHPLayout(value.toLayout()));
      case c10::TypeKind::MemoryFormatType:
        return borrow(torch::utils::getTHPMemoryFormat(value.toMemoryFormat()));
      default:
        break;
    }
  }
  return torch::jit::toPyObject(value);
}

// Calls the Python decomposition `run(name, overload, args)`, which returns a tuple of results or
// None when there is none.
bool decompose(const py::function& run, const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const py::gil_scoped_acquire gil;
  const c10::FunctionSchema& schema = op.schema();
  const size_t n = schema.arguments().size();
  py::list args;
  for (size_t i = 0; i < n; ++i) {
    args.append(to_python(schema.arguments()[i], stack[stack.size() - n + i]));
  }
  const py::object result = run(schema.name(), schema.overload_name(), py::tuple(args));
  if (result.is_none()) return false;
  const auto values = result.cast<py::tuple>();
  TORCH_CHECK(values.size() == schema.returns().size(), schema.name(), ": the decomposition gave ",
              values.size(), " results where ", schema.returns().size(), " were expected");
  torch::jit::drop(stack, n);
  for (size_t i = 0; i < values.size(); ++i) {
    const py::object value = values[i];
    // An undefined tensor comes back as None.
    if (value.is_none() && schema.returns()[i].type()->kind() == c10::TypeKind::TensorType) {
      stack.emplace_back(at::Tensor());
    } else {
      stack.push_back(torch::jit::toIValue(value, schema.returns()[i].type()));
    }
  }
  return true;
}

eager::FallbackPolicy parse_policy(const std::string& text) {
  if (text == "warn") return eager::FallbackPolicy::kWarn;
  if (text == "silent") return eager::FallbackPolicy::kSilent;
  if (text == "error") return eager::FallbackPolicy::kError;
  throw py::value_error("fallback policy: expected 'warn', 'silent' or 'error', got '" + text +
                        "'");
}

// For benchmarks: seconds that the dispatcher takes to gather the signature of x + y, and to find
// its program by it (which must be in memory), each the mean of many.
std::pair<double, double> measure_lookup(const at::Tensor& x, const at::Tensor& y,
                                         int64_t repeats) {
  const c10::OperatorHandle op =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::add", "Tensor");
  const eager::OperatorInfo& info = eager::operator_info(op);
  const std::array<c10::IValue, 3> arguments{x, y, 1};
  const eager::ScopedCallState state;
  const auto time = [&](const auto& body) {
    const auto start = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < repeats; ++i) body();
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    return spent.count() / static_cast<double>(repeats);
  };
  const double gather = time([&] { eager::gather(info, arguments, false, *state); });
  TORCH_CHECK(eager::find_program(state->key), "measure_lookup: compute x + y before");
  const double find = time([&] { static_cast<void>(eager::find_program(state->key)); });
  return {gather, find};
}

}  // namespace

void bind_eager(py::module_& m) {
  m.def("set_decomposition", [](py::function run) {
    const std::shared_ptr<py::function> keep(
        std::make_unique<py::function>(std::move(run)).release(), [](py::function*) {});
    eager::set_decomposition([keep](const c10::OperatorHandle& op, torch::jit::Stack& stack) {
      return decompose(*keep, op, stack);
    });
  });
  m.attr("DEVICE_TYPE") = static_cast<int>(eager::kTpu);
  m.def("current_device", &eager::current_device);
  m.def("set_device", &eager::set_current_device, py::arg("device"));
  m.def(
      "exchange_device",
      [](int device) {
        const int previous = eager::current_device();
        if (device >= 0 && device != previous) eager::set_current_device(device);
        return previous;
      },
      py::arg("device"));
  m.def(
      "current_stream",
      [](int device) {
        eager::check_device(device);
        return eager::current_stream(device);
      },
      py::arg("device"));
  m.def(
      "default_generator",
      [](int device) {
        // The first one's exists whether or not there is a device, so that it can be seeded.
        if (device != 0) eager::check_device(device);
        return eager::default_generator(device);
      },
      py::arg("device"));
  m.def("seed_all", &eager::seed_all_generators, py::arg("seed"));
  m.def(
      "set_fallback_policy",
      [](const std::string& text) { eager::set_fallback_policy(parse_policy(text)); },
      py::arg("policy"));
  m.def("fallback_policy", [] {
    switch (eager::fallback_policy()) {
      case eager::FallbackPolicy::kWarn:
        return "warn";
      case eager::FallbackPolicy::kSilent:
        return "silent";
      case eager::FallbackPolicy::kError:
        return "error";
    }
    return "warn";
  });
  m.def("do_not_record", [] {
    if (eager::Trace* trace = eager::Trace::current()) trace->set_private();
  });
  m.def("set_torch_version", &eager::set_torch_version, py::arg("version"));
  m.def("measure_lookup", &measure_lookup, py::arg("x"), py::arg("y"), py::arg("repeats"));
  m.def("program_count", &eager::program_count);
  m.def("clear_programs", &eager::clear_programs);
}

}  // namespace torch_tpu::bindings
