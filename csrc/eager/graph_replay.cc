#include "eager/graph_replay.h"

#include "eager/explain.h"
#include "eager/signature_history.h"
#include "pjrt/error.h"
#include "runtime/compile_service.h"
#include "runtime/memory.h"
#include "runtime/runtime.h"

namespace torch_tpu::eager {

void replay(const GraphCalls& what, runtime::Batch& batch, const std::exception_ptr& error) {
  runtime::Runtime& rt = runtime::Runtime::get();
  for (const runtime::DeviceBufferPtr& input : batch.inputs) {
    // Taken over by the run that failed: nothing to begin from.
    if (input->pjrt().is_deleted()) std::rethrow_exception(error);
  }
  std::vector<pjrt::Buffer> values;
  int64_t bytes = 0;
  for (const Call& call : what.calls) {
    const Program& program = *call.program;
    const auto explained = [&](const std::exception& e) {
      const std::string name = call_of_program(program.id, program.executable->what());
      return name + (what.calls.size() > 1 ? " failed in a fused program: " : " failed: ") +
             e.what() +
             (call.stack.empty() ? "\nTORCH_TPU_DEBUG_STACKS=1 shows the code that called it."
                                 : "\nIt was called here:\n" + call.stack);
    };
    try {
      bytes += static_cast<int64_t>(program.output_bytes);
      if (runtime::would_exceed_limit(batch.device, bytes)) std::rethrow_exception(error);
      std::vector<PJRT_Buffer*> handles;
      std::vector<int64_t> kept;
      for (size_t k = 0; k < program.parameters.size(); ++k) {
        const uint32_t code = what.operands[call.first_operand + k];
        handles.push_back(is_value(code) ? values[code >> 1].handle()
                                         : batch.inputs[code >> 1]->handle());
        if (program.parameters[k].donated) kept.push_back(static_cast<int64_t>(k));
      }
      std::vector<PJRT_Buffer*> results(program.outputs.size(), nullptr);
      program.executable->executable().execute(handles.data(), handles.size(), results.data(), kept,
                                               rt.device(batch.device).handle);
      for (PJRT_Buffer* result : results) {
        values.push_back(pjrt::Buffer::adopt(rt.client().api(), result));
        values.back().ready().await();
      }
    } catch (const pjrt::Error& e) {
      throw pjrt::Error(e.code(), explained(e));
    } catch (const std::exception& e) {
      throw runtime::CompileError(explained(e));
    }
  }
  // One by one it works: the fused program is at fault, and the results are there.
  for (size_t i = 0; i < what.live.size(); ++i) {
    batch.fulfil(i, std::move(values[what.live[i]]));
  }
  explain_replay(names_of(what), error);
}

}  // namespace torch_tpu::eager
