// When a fused program cannot be compiled or fails: its operators one by one.
#pragma once

#include <exception>

#include "eager/graph_calls.h"
#include "runtime/batch.h"

namespace torch_tpu::eager {

// Runs the calls one by one and gives the batch its results. Throws for the first that fails, with
// its name and the code that called it; `error` itself where there is nothing to begin from.
void replay(const GraphCalls& what, runtime::Batch& batch, const std::exception_ptr& error);

}  // namespace torch_tpu::eager
