#pragma once

namespace torch_tpu::bindings {

// Waits, at most a second, until PyTorch's autograd threads sleep. backward() returns before they
// have dropped the graph, for which they need the interpreter: it would abort the process if that
// were gone. Call without the GIL, before the interpreter ends.
void wait_for_autograd_threads();

}  // namespace torch_tpu::bindings
