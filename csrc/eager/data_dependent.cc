#include "eager/data_dependent.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/native/Resize.h>

#include "eager/copy.h"
#include "eager/device_context.h"
#include "eager/device_storage.h"
#include "eager/dry_run.h"
#include "eager/indexing.h"
#include "eager/trace.h"

namespace torch_tpu::eager {

namespace {

at::Tensor to_tpu(const at::Tensor& host, const at::Tensor& like) { return host.to(like.device()); }

// PyTorch's own kernels give columns that follow each other in memory: so does a copy.
at::Tensor places(const at::Tensor& self) {
  const at::Tensor rows = nonzero_rows(self).exact();
  return self.dim() > 1 ? rows.clone() : rows;
}

at::Tensor& to_out(const at::Tensor& result, at::Tensor& out,
                   std::initializer_list<at::Tensor> inputs) {
  TORCH_CHECK(out.scalar_type() == result.scalar_type(), "Expected out tensor to have dtype ",
              result.dtype(), ", but got ", out.dtype(), " instead");
  at::assert_no_internal_overlap(out);
  for (const at::Tensor& input : inputs) at::assert_no_overlap(out, input);
  at::native::resize_output(out, result.sizes());
  return out.copy_(result);
}

at::Tensor& nonzero_out(const at::Tensor& self, at::Tensor& out) {
  const at::Tensor result = places(self);
  const bool resized = out.sizes() != result.sizes();
  to_out(result, out, {self});
  // PyTorch's own kernels write columns that follow each other in memory.
  if (resized && self.dim() > 1 && out.numel() > 0) {
    out.as_strided_(result.sizes(), result.strides());
    out.copy_(result);
  }
  return out;
}

at::Tensor selected(const at::Tensor& self, const at::Tensor& mask) {
  TORCH_CHECK(mask.scalar_type() == at::kBool, "masked_select: expected BoolTensor for mask");
  const auto both = at::broadcast_tensors({mask, self});
  const NonzeroRows chosen = nonzero_rows(both[0].reshape({-1}));
  return first_rows(both[1].reshape({-1}).index_select(0, chosen.rows.select(1, 0)), chosen.count);
}

at::Tensor& masked_select_out(const at::Tensor& self, const at::Tensor& mask, at::Tensor& out) {
  return to_out(selected(self, mask), out, {self, mask});
}

bool equal(const at::Tensor& self, const at::Tensor& other) {
  TORCH_CHECK(self.device() == other.device(),
              "Expected all tensors to be on the same device, but found at least two devices, ",
              self.device(), " and ", other.device(), "!");
  if (self.sizes() != other.sizes() || self.scalar_type() != other.scalar_type()) return false;
  if (self.numel() == 0) return true;
  return self.eq(other).all().item<bool>();
}

// The counts are needed on the host in any case: the index is made there.
at::Tensor repeat_interleave(const at::Tensor& repeats, std::optional<int64_t> output_size) {
  const at::Tensor counts = to_cpu(repeats);
  if (output_size && DryRun::current() && counts.sum().item<int64_t>() != *output_size) {
    // Counts that are not known: only their sum is.
    return to_tpu(at::zeros({*output_size}, counts.options()), repeats);
  }
  return to_tpu(at::repeat_interleave(counts, output_size), repeats);
}

// unique needs the number of distinct values on the host before anything else can go on. The work
// itself, sorting small integer tensors for the most part, is done there too.
std::tuple<at::Tensor, at::Tensor, at::Tensor> unique2(const at::Tensor& self, bool sorted,
                                                       bool return_inverse, bool return_counts) {
  const auto [values, inverse, counts] =
      at::_unique2(to_cpu(self), sorted, return_inverse, return_counts);
  return {to_tpu(values, self), to_tpu(inverse, self), to_tpu(counts, self)};
}

std::tuple<at::Tensor, at::Tensor> unique(const at::Tensor& self, bool sorted,
                                          bool return_inverse) {
  const auto [values, inverse, counts] = unique2(self, sorted, return_inverse, false);
  return {values, inverse};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> unique_consecutive(const at::Tensor& self,
                                                                  bool return_inverse,
                                                                  bool return_counts,
                                                                  std::optional<int64_t> dim) {
  const auto [values, inverse, counts] =
      at::unique_consecutive(to_cpu(self), return_inverse, return_counts, dim);
  return {to_tpu(values, self), to_tpu(inverse, self), to_tpu(counts, self)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> unique_dim(const at::Tensor& self, int64_t dim,
                                                          bool sorted, bool return_inverse,
                                                          bool return_counts) {
  const auto [values, inverse, counts] =
      at::unique_dim(to_cpu(self), dim, sorted, return_inverse, return_counts);
  return {to_tpu(values, self), to_tpu(inverse, self), to_tpu(counts, self)};
}

at::Tensor bincount(const at::Tensor& self, const std::optional<at::Tensor>& weights,
                    int64_t minlength) {
  const std::optional<at::Tensor> host_weights =
      weights && weights->defined() ? std::optional<at::Tensor>(to_cpu(*weights)) : std::nullopt;
  return to_tpu(at::bincount(to_cpu(self), host_weights, minlength), self);
}

}  // namespace

void register_data_dependent(torch::Library& aten) {
  for (const char* name :
       {"index.Tensor", "index.Tensor_out", "index_put", "index_put_", "index_put.out",
        "_index_put_impl", "_index_put_impl_", "_unsafe_index.Tensor", "_unsafe_index_put"}) {
    const std::string_view text = name;
    const size_t dot = std::min(text.find('.'), text.size());
    const c10::OperatorHandle op = c10::Dispatcher::singleton().findSchemaOrThrow(
        ("aten::" + std::string(text.substr(0, dot))).c_str(),
        dot == text.size() ? "" : name + dot + 1);
    aten.impl(name, torch::CppFunction::makeFromBoxedFunctor(
                        std::make_unique<IndexingFunctor>(operator_info(op))));
  }
  aten.impl("nonzero", TORCH_FN(places));
  aten.impl("nonzero.out", TORCH_FN(nonzero_out));
  aten.impl("masked_select", TORCH_FN(selected));
  aten.impl("masked_select.out", TORCH_FN(masked_select_out));
  aten.impl("equal", TORCH_FN(equal));
  aten.impl("repeat_interleave.Tensor", TORCH_FN(repeat_interleave));
  aten.impl("_unique2", TORCH_FN(unique2));
  aten.impl("_unique", TORCH_FN(unique));
  aten.impl("unique_consecutive", TORCH_FN(unique_consecutive));
  aten.impl("unique_dim", TORCH_FN(unique_dim));
  aten.impl("bincount", TORCH_FN(bincount));
}

}  // namespace torch_tpu::eager
