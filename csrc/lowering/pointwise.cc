#include "lowering/pointwise.h"

#include "lowering/families.h"

namespace torch_tpu::lowering {

void register_pointwise(Registry& r) {
  register_arithmetic(r);
  register_unary(r);
  register_comparison(r);
  register_special(r);
  register_bessel(r);
  register_incomplete_gamma(r);
  register_fake_quantize(r);
  register_polynomials(r);
}

}  // namespace torch_tpu::lowering
