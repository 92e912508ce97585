#include "eager/data_dependent.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>

#include <algorithm>

#include "eager/copy.h"
#include "eager/device_context.h"
#include "eager/device_storage.h"
#include "eager/trace.h"

namespace torch_tpu::eager {

namespace {

at::Tensor to_tpu(const at::Tensor& host, const at::Tensor& like) { return host.to(like.device()); }

// The coordinates of all non-zero elements are computed in one program of fixed shape; how many
// there are is the one value that is waited for.
at::Tensor nonzero_values(const at::Tensor& self) {
  require_real_values("nonzero");
  const at::Tensor flags = self.scalar_type() == at::kBool ? self : self.ne(0);
  const at::Tensor flat = flags.reshape({-1});
  const int64_t numel = flat.numel();
  const at::TensorOptions longs = self.options().dtype(at::kLong);
  if (numel == 0) return at::empty({0, self.dim()}, longs);
  const int64_t count = flat.sum().item<int64_t>();
  if (self.dim() == 0) return at::empty({count, 0}, longs);
  // Stable: non-zero places first, in order.
  const at::Tensor order =
      std::get<1>(at::sort(flat.logical_not().to(at::kByte), /*stable=*/true, 0, false));
  at::Tensor place = order.narrow(0, 0, count);
  std::vector<at::Tensor> columns;
  int64_t below = 1;
  for (int64_t d = self.dim() - 1; d >= 0; --d) {
    at::Tensor column = below == 1 ? place : at::div(place, below, "floor");
    if (d > 0) column = at::remainder(column, self.size(d));
    columns.push_back(column);
    below *= self.size(d);
  }
  std::reverse(columns.begin(), columns.end());
  return at::stack(columns, 1);
}

at::Tensor& nonzero_out(const at::Tensor& self, at::Tensor& out) {
  const at::Tensor result = nonzero_values(self);
  out.resize_(result.sizes());
  return out.copy_(result);
}

at::Tensor masked_values(const at::Tensor& self, const at::Tensor& mask) {
  TORCH_CHECK(mask.scalar_type() == at::kBool,
              "masked_select: expected BoolTensor for mask, but got ", mask.scalar_type());
  const auto both = at::broadcast_tensors({self, mask});
  const at::Tensor place = nonzero_values(both[1].reshape({-1})).select(1, 0);
  return both[0].reshape({-1}).index_select(0, place);
}

at::Tensor& masked_select_out(const at::Tensor& self, const at::Tensor& mask, at::Tensor& out) {
  const at::Tensor result = masked_values(self, mask);
  out.resize_(result.sizes());
  return out.copy_(result);
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
  return to_tpu(at::repeat_interleave(to_cpu(repeats), output_size), repeats);
}

// unique needs the number of distinct values on the host before anything else can go on. The work
// itself, sorting small integer tensors for the most part, is done there too.
std::tuple<at::Tensor, at::Tensor, at::Tensor> unique2(const at::Tensor& self, bool sorted,
                                                       bool return_inverse, bool return_counts) {
  const auto [values, inverse, counts] =
      at::_unique2(to_cpu(self), sorted, return_inverse, return_counts);
  return {to_tpu(values, self), to_tpu(inverse, self), to_tpu(counts, self)};
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
  aten.impl("nonzero", TORCH_FN(nonzero_values));
  aten.impl("nonzero.out", TORCH_FN(nonzero_out));
  aten.impl("masked_select", TORCH_FN(masked_values));
  aten.impl("masked_select.out", TORCH_FN(masked_select_out));
  aten.impl("equal", TORCH_FN(equal));
  aten.impl("repeat_interleave.Tensor", TORCH_FN(repeat_interleave));
  aten.impl("_unique2", TORCH_FN(unique2));
  aten.impl("unique_consecutive", TORCH_FN(unique_consecutive));
  aten.impl("unique_dim", TORCH_FN(unique_dim));
  aten.impl("bincount", TORCH_FN(bincount));
}

}  // namespace torch_tpu::eager
