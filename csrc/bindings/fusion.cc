// Deferred execution as Python sees it: flushing, stacks for errors, notes of what was dispatched.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/add.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/mul.h>
#include <torch/csrc/utils/pybind.h>

#include <chrono>
#include <random>
#include <unordered_map>

#include "bindings/bindings.h"
#include "eager/explain.h"
#include "eager/fusion_graph.h"
#include "eager/mode.h"
#include "eager/signature_history.h"
#include "runtime/work_queue.h"

namespace py = pybind11;

namespace torch_tpu::bindings {

namespace {

py::dict to_python(const eager::DispatchNote& note) {
  py::dict d;
  d["reason"] = note.reason;
  d["calls"] = *note.calls;
  d["known"] = note.known;
  d["shared"] = note.shared;
  d["difference"] = note.difference;
  d["live_bytes"] = note.live_bytes;
  d["compile_seconds"] = note.program->compile_seconds();
  d["from_cache"] = note.program->from_cache();
  d["failed"] = note.program->settled() && !note.program->ready();
  return d;
}

// Once their programs are compiled: their times are known then.
std::vector<eager::DispatchNote> settled_notes(size_t from) {
  const py::gil_scoped_release release;
  std::vector<eager::DispatchNote> notes = eager::dispatch_notes(from);
  for (const eager::DispatchNote& note : notes) {
    try {
      static_cast<void>(note.program->executable());
    } catch (const std::exception&) {
      // Whoever reads the results hears of it.
    }
  }
  return notes;
}

// Seconds that a call takes until it is recorded, without Python. The operators come in an order
// without repetitions, so that nothing is run meanwhile.
double measure_recording(const at::Tensor& x, size_t count) {
  TORCH_CHECK(eager::current_mode() == eager::EagerMode::kDeferAndFuse,
              "measure_recording: expected EagerMode.DEFER_AND_FUSE to hold");
  const py::gil_scoped_release release;
  const at::AutoDispatchBelowAutograd below_autograd;
  eager::flush_graphs(eager::CutReason::kSynchronize);
  std::minstd_rand order(1);
  std::vector<uint32_t> choices(count);
  for (uint32_t& choice : choices) choice = (order() >> 8) % 4;
  at::Tensor y = x;
  const auto start = std::chrono::steady_clock::now();
  for (const uint32_t choice : choices) {
    switch (choice) {
      case 0:
        y = at::add(y, x);
        break;
      case 1:
        y = at::mul(y, x);
        break;
      case 2:
        y = at::maximum(y, x);
        break;
      default:
        y = at::minimum(y, x);
        break;
    }
  }
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
  return spent.count() / static_cast<double>(count);
}

}  // namespace

void bind_fusion(py::module_& m) {
  runtime::set_before_waiting(
      [](int device) { eager::flush_graph(device, eager::CutReason::kSynchronize); });
  runtime::set_call_names(
      [](uint64_t program) { return eager::call_of_program(program, std::string()); });
  m.def("flush", [] {
    const py::gil_scoped_release release;
    eager::flush_graphs(eager::CutReason::kSynchronize);
  });
  m.def("recorded_calls", &eager::recorded_calls);
  m.def(
      "fail_next_graph",
      [](const std::string& step) {
        TORCH_CHECK_VALUE(step == "compose" || step == "submit",
                          "fail_next_graph: expected 'compose' or 'submit', got '", step, "'");
        eager::fail_next_graph(step == "compose" ? eager::GraphStep::kCompose
                                                 : eager::GraphStep::kSubmit);
      },
      py::arg("step"));
  m.def("measure_recording", &measure_recording, py::arg("x"), py::arg("count"));
  m.def("set_stack_source", [](py::function source) {
    const std::shared_ptr<py::function> keep(
        std::make_unique<py::function>(std::move(source)).release(), [](py::function*) {});
    eager::set_stack_source([keep] {
      const py::gil_scoped_acquire gil;
      return (*keep)().cast<std::string>();
    });
  });
  m.def("start_explaining", &eager::start_explaining);
  m.def("stop_explaining", &eager::stop_explaining);
  m.def("dispatch_note_count", &eager::dispatch_note_count);
  m.def(
      "dispatch_notes",
      [](size_t from) {
        py::list out;
        std::unordered_map<const runtime::CompiledProgram*, py::str> texts;  // each once
        for (const eager::DispatchNote& note : settled_notes(from)) {
          py::dict d = to_python(note);
          d["stablehlo"] =
              texts.try_emplace(note.program.get(), note.program->text()).first->second;
          out.append(std::move(d));
        }
        return out;
      },
      py::arg("since"));
}

}  // namespace torch_tpu::bindings
