#include "lowering/families.h"

namespace torch_tpu::lowering {

void register_linalg(Registry&) {}

}  // namespace torch_tpu::lowering
