#pragma once

#include <pybind11/pybind11.h>

namespace torch_tpu::bindings {

void bind_runtime(pybind11::module_& m);
void bind_eager(pybind11::module_& m);
void bind_modes(pybind11::module_& m);
void bind_fusion(pybind11::module_& m);
void bind_dry_run(pybind11::module_& m);
void bind_cache(pybind11::module_& m);
void bind_precision(pybind11::module_& m);
void bind_aot(pybind11::module_& m);
void bind_compile(pybind11::module_& m);
void bind_compile_step(pybind11::module_& m);
void bind_export(pybind11::module_& m);

}  // namespace torch_tpu::bindings
