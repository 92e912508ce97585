// Weight norm: v scaled so that its norm over all dimensions but one is g.
#include "lowering/normalization.h"
#include "lowering/promotion.h"
#include "lowering/reduction.h"

namespace torch_tpu::lowering {

namespace sh = stablehlo;

namespace {

Value floating(const Call& call, std::string_view name) {
  const Value x = convert_halves(call.tensor(name));
  if (!sh::is_float(x.dtype())) throw Unsupported(call.op() + ": not real floating point");
  return x;
}

Dims other_dims(const Call& call, Value v) {
  const int64_t dim = wrap_dim(call.integer("dim"), v.rank());
  Dims dims;
  for (int64_t d = 0; d < v.rank(); ++d) {
    if (d != dim) dims.push_back(d);
  }
  return dims;
}

Values weight_norm(Call& call) {
  const Value v = floating(call, "v");
  const Dims dims = other_dims(call, v);
  const Value norm = keep_dims(norm_over(v, 2, dims), v.dims(), dims);
  const Value g = as(call.tensor("g"), v.dtype(), norm.dims());
  return {sh::multiply(v, sh::broadcast_to(sh::divide(g, norm), v.dims())), norm};
}

Values weight_norm_backward(Call& call) {
  const Value v = floating(call, "saved_v");
  const Dims dims = other_dims(call, v);
  const Value grad = sh::convert(call.tensor("grad_w"), v.dtype());
  const Value projection = keep_dims(sum_over(sh::multiply(grad, v), dims), v.dims(), dims);
  const Value norm = as(call.tensor("saved_norms"), v.dtype(), projection.dims());
  const Value g = as(call.tensor("saved_g"), v.dtype(), projection.dims());
  const auto spread_out = [&](Value x) { return sh::broadcast_to(x, v.dims()); };
  const Value along_v = sh::divide(projection, sh::multiply(norm, norm));
  const Value grad_v = sh::multiply(spread_out(sh::divide(g, norm)),
                                    sh::subtract(grad, sh::multiply(v, spread_out(along_v))));
  return {grad_v, sh::divide(projection, norm)};
}

}  // namespace

void register_weight_norm(Registry& r) {
  r.add("aten::_weight_norm_interface", weight_norm);
  r.add("aten::_weight_norm_interface_backward", weight_norm_backward);
}

}  // namespace torch_tpu::lowering
