#include "lowering/platform.h"

namespace torch_tpu::lowering {

namespace {

// Owned by the CompilingFor scopes of this thread.
thread_local Platform t_platform = Platform::kTpu;

}  // namespace

CompilingFor::CompilingFor(Platform platform) : previous_(t_platform) { t_platform = platform; }
CompilingFor::~CompilingFor() { t_platform = previous_; }
Platform CompilingFor::platform() { return t_platform; }

}  // namespace torch_tpu::lowering
