// The extension module torch_tpu._cache: what the command line needs, in a process without torch.
#include "bindings/cache_tools.h"

PYBIND11_MODULE(_cache, m) {
  m.doc() = "The stored programs of torch_tpu.";
  torch_tpu::bindings::bind_cache_tools(m);
}
