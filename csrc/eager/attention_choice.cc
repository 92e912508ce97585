// Tells scaled_dot_product_attention when to call the device's fused operator. What it does not
// take goes PyTorch's own way: products and a softmax.

#include <ATen/Context.h>
#include <ATen/SDPBackend.h>
#include <ATen/native/transformers/attention.h>
#include <torch/library.h>

namespace {

// The leading sizes agree, but for key and value heads that several query heads share. Sizes may be
// symbols: no more is asked of them than must hold.
bool fits_fused(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                bool grouped) {
  const int64_t rank = query.dim();
  if (rank != 3 && rank != 4) return false;
  if (key.dim() != rank || value.dim() != rank) return false;
  if (query.is_nested() || key.is_nested() || value.is_nested()) return false;
  if (query.scalar_type() != key.scalar_type() || query.scalar_type() != value.scalar_type() ||
      !query.is_floating_point()) {
    return false;
  }
  if (rank == 4 &&
      (query.sym_size(0) != key.sym_size(0) || query.sym_size(0) != value.sym_size(0))) {
    return false;
  }
  const c10::SymInt heads = query.sym_size(-3), key_heads = key.sym_size(-3);
  if (key_heads != value.sym_size(-3)) return false;
  if (query.sym_size(-1) != key.sym_size(-1) || key.sym_size(-2) != value.sym_size(-2)) {
    return false;
  }
  return grouped ? key_heads > 0 && heads % key_heads == 0 : key_heads == heads;
}

int64_t choose(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
               const std::optional<at::Tensor>& mask, double /*dropout*/, bool /*is_causal*/,
               std::optional<double> /*scale*/, bool grouped) {
  const bool mask_fits = !mask || mask->dim() <= query.dim();
  const bool fused = at::globalContext().userEnabledOverrideableSDP() && mask_fits &&
                     fits_fused(query, key, value, grouped);
  return static_cast<int64_t>(fused ? at::SDPBackend::overrideable : at::SDPBackend::math);
}

}  // namespace

namespace at::native {

REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &choose)

}  // namespace at::native

namespace {

// torch.nn.TransformerEncoder makes nested tensors of padded batches if the padding is on the
// right. The device has none: as for padding elsewhere, it then goes on with masks.
bool is_left_aligned(const at::Tensor& /*padded*/, const at::Tensor& /*mask*/) { return false; }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_nested_tensor_from_mask_left_aligned", TORCH_FN(is_left_aligned));
}

}  // namespace
