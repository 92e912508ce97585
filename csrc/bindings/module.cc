// The extension module torch_tpu._C.
#include <torch/csrc/utils/pybind.h>

#include "bindings/bindings.h"
#include "eager/hooks.h"

PYBIND11_MODULE(_C, m) {
  m.doc() = "The engine of torch_tpu.";
  torch_tpu::eager::register_hooks();
  torch_tpu::bindings::bind_runtime(m);
  torch_tpu::bindings::bind_eager(m);
  torch_tpu::bindings::bind_modes(m);
  torch_tpu::bindings::bind_fusion(m);
  torch_tpu::bindings::bind_dry_run(m);
  torch_tpu::bindings::bind_cache(m);
  torch_tpu::bindings::bind_precision(m);
  torch_tpu::bindings::bind_aot(m);
  torch_tpu::bindings::bind_compile(m);
  torch_tpu::bindings::bind_compile_step(m);
  torch_tpu::bindings::bind_export(m);
}
