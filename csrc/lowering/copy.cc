// copy_: the conversion, the broadcast and the write through self's view are the driver's.
#include "lowering/families.h"

namespace torch_tpu::lowering {

void register_copy(Registry& r) {
  r.add("aten::copy_", [](Call& call) { return Values{call.tensor("src")}; });
}

}  // namespace torch_tpu::lowering
