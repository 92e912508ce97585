#pragma once

#include <pybind11/pybind11.h>

// What the compilation cache takes from Python: its log, and stores on remote filesystems.
//
// Threads of the engine are in Python for moments only, and not at all once the interpreter is
// about to end: a thread that is inside then cannot be ended cleanly.
namespace torch_tpu::bindings {

// Log lines go to the logger "torch_tpu.cache", in the main thread; waiting lets go of the GIL.
void host_cache();

// `open(url)` makes the object behind a remote store, see torch_tpu/remote_cache.py.
void set_remote_stores(pybind11::function open);

// The interpreter is about to end: remote operations fail from now on, log lines go to standard
// error. Called with the GIL.
void leave_python();

}  // namespace torch_tpu::bindings
