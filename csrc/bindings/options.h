// Compiler options as Python gives them.
#pragma once

#include <pybind11/pybind11.h>

#include "pjrt/option.h"

namespace torch_tpu::bindings {

// From a dict of bool, int, float and str. Throws TypeError for other values, with the name.
pjrt::Options options_from(const pybind11::dict& options);

}  // namespace torch_tpu::bindings
