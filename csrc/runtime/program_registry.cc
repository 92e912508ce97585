#include "runtime/program_registry.h"

#include <algorithm>

#include "cache/digest.h"
#include "pjrt/compile_options.h"

namespace torch_tpu::runtime {

ProgramRegistry& ProgramRegistry::get() {
  // Never destroyed: other threads may still compile when the process ends.
  static ProgramRegistry& registry = *std::make_unique<ProgramRegistry>().release();
  return registry;
}

CompiledProgramPtr ProgramRegistry::find_or_add(std::string text, std::string what,
                                                pjrt::Options options) {
  std::string own;
  if (!options.empty()) own = pjrt::CompileOptions{.env_overrides = options}.serialize();
  std::string name(cache::sha256({text, own}).view());
  const std::lock_guard lock(mutex_);
  std::weak_ptr<CompiledProgram>& known = programs_[std::move(name)];
  if (CompiledProgramPtr program = known.lock()) {
    if (program->ready() || !program->settled()) return program;
  }
  auto program =
      std::make_shared<CompiledProgram>(std::move(text), std::move(what), std::move(options));
  known = program;
  if (programs_.size() > sweep_at_) {
    std::erase_if(programs_, [](const auto& entry) { return entry.second.expired(); });
    sweep_at_ = std::max<size_t>(1024, 2 * programs_.size());
  }
  return program;
}

}  // namespace torch_tpu::runtime
