// Makes a library that is loaded call other functions than the ones it was linked with. (Functions
// of the C library cannot be replaced in another way by a library that comes after it.)
#pragma once

#include <span>

namespace torch_tpu::runtime {

struct Redirection {
  const char* name;
  void* function;
};

// In the order given. `inside` is an address in the library. Returns false, and has changed
// nothing, if the library does not import the first of the functions or is of a kind that is not
// known here; others that it does not import are left out.
bool redirect_imports(const void* inside, std::span<const Redirection> redirections);

}  // namespace torch_tpu::runtime
