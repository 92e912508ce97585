#include "lowering/normalization.h"

#include "lowering/families.h"

namespace torch_tpu::lowering {

void register_normalization(Registry& r) {
  register_softmax(r);
  register_layer_norm(r);
  register_batch_norm(r);
  register_weight_norm(r);
}

}  // namespace torch_tpu::lowering
