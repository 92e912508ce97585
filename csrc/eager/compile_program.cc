#include "eager/compile_program.h"

#include "eager/dry_run.h"
#include "eager/mode.h"
#include "runtime/compile_service.h"

namespace torch_tpu::eager {

runtime::CompiledProgramPtr compile_program(std::string text, const std::string& what) {
  if (DryRun::current()) return runtime::compile_in_background(std::move(text), what);
  switch (current_mode()) {
    case EagerMode::kDeferNever:
      return runtime::compile_in_background(std::move(text), what);
    case EagerMode::kDeferNeverAndLaunchBlocking:
      return runtime::compile(std::move(text), what);
    case EagerMode::kDeferAndFuse:
      return runtime::prepare(std::move(text), what);
  }
  return nullptr;
}

}  // namespace torch_tpu::eager
