#include "eager/compile_program.h"

#include "eager/dry_run.h"
#include "eager/mode.h"
#include "runtime/compile_service.h"

namespace torch_tpu::eager {

runtime::CompiledProgramPtr compile_program(std::string text, const std::string& what,
                                            const pjrt::Options& options) {
  if (DryRun::current()) return runtime::compile_in_background(std::move(text), what, options);
  switch (current_mode()) {
    case EagerMode::kDeferNever:
      return runtime::compile_in_background(std::move(text), what, options);
    case EagerMode::kDeferNeverAndLaunchBlocking:
      return runtime::compile(std::move(text), what, options);
    case EagerMode::kDeferAndFuse:
      return runtime::prepare(std::move(text), what, options);
  }
  return nullptr;
}

}  // namespace torch_tpu::eager
