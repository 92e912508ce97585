// The threads that compile beside the program.
#pragma once

#include <functional>

namespace torch_tpu::runtime {

// Runs `task`, which must not throw, on one of as many threads as the machine has processors.
// Tasks start in the order they come.
void run_in_compile_pool(std::function<void()> task);

// Forgets the tasks that have not begun and waits for the others: at the end of the process.
void finish_compile_pool();

}  // namespace torch_tpu::runtime
