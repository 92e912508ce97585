#include "compile/lowering_target.h"

#include <utility>

namespace torch_tpu::compile {

namespace {

// Owned by whoever exchanges it, for the time of a scope.
thread_local std::optional<lowering::Platform> t_target;

}  // namespace

std::optional<lowering::Platform> lowering_target() { return t_target; }

std::optional<lowering::Platform> exchange_lowering_target(
    std::optional<lowering::Platform> target) {
  return std::exchange(t_target, target);
}

}  // namespace torch_tpu::compile
