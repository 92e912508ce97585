#include "eager/graph_calls.h"

namespace torch_tpu::eager {

std::string names_of(const GraphCalls& what) {
  std::string out;
  size_t n = 0;
  for (const Call& call : what.calls) {
    if (++n > 6) return out + ", ...";
    if (!out.empty()) out += ", ";
    out += call.program->executable->what();
  }
  return out;
}

}  // namespace torch_tpu::eager
