#include "eager/indexing.h"

#include <ATen/ops/count_nonzero.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index.h>
#include <ATen/ops/masked_fill.h>
#include <ATen/ops/nonzero_static.h>

#include <span>
#include <sstream>

#include "eager/device_storage.h"
#include "eager/trace.h"

namespace torch_tpu::eager {

namespace {

// Results of unknown length are computed at their greatest length up to this size, and cut: a new
// length then costs no compilation.
constexpr size_t kMaxPaddedBytes = size_t{1} << 24;

bool is_mask(const at::Tensor& t) {
  return t.scalar_type() == at::kBool || t.scalar_type() == at::kByte;
}

using Indices = std::vector<at::Tensor>;  // undefined: ":"

Indices indices_of(const c10::IValue& value) {
  Indices out;
  for (const c10::IValue& entry : value.toListRef()) {
    out.push_back(entry.isNone() ? at::Tensor() : entry.toTensor());
  }
  return out;
}

void check_broadcast(const Indices& indices) {
  std::vector<int64_t> sizes;
  std::ostringstream shapes;
  bool fit = true;
  for (const at::Tensor& t : indices) {
    if (!t.defined()) continue;
    shapes << (shapes.tellp() > 0 ? ", " : "") << t.sizes();
    const int64_t shared = std::min<int64_t>(t.dim(), static_cast<int64_t>(sizes.size()));
    for (int64_t d = 1; d <= shared; ++d) {
      int64_t& size = sizes[sizes.size() - static_cast<size_t>(d)];
      if (size == 1) size = t.size(-d);
      fit &= t.size(-d) == 1 || t.size(-d) == size;
    }
    const auto more = t.sizes().slice(0, static_cast<size_t>(t.dim() - shared));
    sizes.insert(sizes.begin(), more.begin(), more.end());
  }
  TORCH_CHECK_INDEX(fit,
                    "shape mismatch: indexing tensors could not be broadcast together with shapes ",
                    shapes.str());
}

// Whether there is a mask or an index that is not on the device; checks what the indices' shapes
// and dtypes say.
bool needs_work(const c10::IValue& value) {
  bool work = false;
  const at::Tensor* first = nullptr;
  bool same_sizes = true;
  for (const c10::IValue& entry : value.toListRef()) {
    if (entry.isNone()) continue;
    const at::Tensor& t = entry.toTensor();
    if (!t.defined()) continue;
    TORCH_CHECK_INDEX(is_mask(t) || t.scalar_type() == at::kLong || t.scalar_type() == at::kInt,
                      "tensors used as indices must be long, int, byte or bool tensors");
    if (is_mask(t) || !is_tpu(t)) work = true;
    if (first && t.sizes() != first->sizes()) same_sizes = false;
    first = &t;
  }
  if (!work && !same_sizes) check_broadcast(indices_of(value));
  return work;
}

void check_mask(const at::Tensor& self, const at::Tensor& mask, int64_t first) {
  if (mask.scalar_type() == at::kByte) {
    TORCH_WARN(
        "indexing with dtype torch.uint8 is now deprecated, please use a dtype torch.bool "
        "instead.");
  }
  TORCH_CHECK_INDEX(first + mask.dim() <= self.dim(), "too many indices for tensor of dimension ",
                    self.dim());
  for (int64_t j = 0; j < mask.dim(); ++j) {
    TORCH_CHECK_INDEX(mask.size(j) == self.size(first + j), "The shape of the mask ", mask.sizes(),
                      " at index ", j, " does not match the shape of the indexed tensor ",
                      self.sizes(), " at index ", first + j);
  }
}

// Indices on the host are looked at, as the CPU does; those on the device are clamped instead.
void check_range(const at::Tensor& index, int64_t dim, int64_t size) {
  const at::Tensor plain = index.to(at::kLong).contiguous();
  for (const int64_t i :
       std::span(plain.const_data_ptr<int64_t>(), static_cast<size_t>(plain.numel()))) {
    TORCH_CHECK_INDEX(i >= -size && i < size, "index ", i, " is out of bounds for dimension ", dim,
                      " with size ", size);
  }
}

void check_host_indices(const at::Tensor& self, const Indices& indices) {
  int64_t dim = 0;
  for (const at::Tensor& t : indices) {
    const int64_t taken = t.defined() && is_mask(t) ? t.dim() : 1;
    if (dim + taken > self.dim()) return;  // too many indices, which others refuse
    if (t.defined() && !is_mask(t) && t.device().is_cpu()) check_range(t, dim, self.size(dim));
    dim += taken;
  }
}

// The mask, where it is the only index.
struct LoneMask {
  at::Tensor mask;
  int64_t first = 0;  // the dimension it starts at
};

LoneMask lone_mask(const Indices& indices) {
  LoneMask found;
  for (const at::Tensor& t : indices) {
    if (!t.defined()) {
      if (!found.mask.defined()) ++found.first;
      continue;
    }
    if (found.mask.defined() || !is_mask(t)) return {};
    found.mask = t;
  }
  return found;
}

Indices without_masks(const at::Tensor& self, const Indices& indices) {
  Indices out;
  for (const at::Tensor& t : indices) {
    if (!t.defined() || !is_mask(t)) {
      out.push_back(t);
      continue;
    }
    check_mask(self, t, static_cast<int64_t>(out.size()));
    const at::Tensor rows = nonzero_rows(t).exact();
    for (int64_t j = 0; j < t.dim(); ++j) out.push_back(rows.select(1, j));
  }
  return out;
}

c10::IValue to_ivalue(const Indices& indices) {
  c10::List<std::optional<at::Tensor>> list;
  for (const at::Tensor& t : indices) {
    list.push_back(t.defined() ? std::optional<at::Tensor>(t) : std::nullopt);
  }
  return list;
}

// self[mask] for a mask of the leading dimensions: all rows the mask could choose, then those it
// chose.
std::optional<at::Tensor> take_by_mask(const at::Tensor& self, const LoneMask& lone) {
  if (lone.first != 0 || lone.mask.dim() == 0) return std::nullopt;
  check_mask(self, lone.mask, 0);
  if (self.nbytes() > kMaxPaddedBytes || self.numel() == 0) return std::nullopt;
  const NonzeroRows chosen = nonzero_rows(lone.mask);
  c10::List<std::optional<at::Tensor>> indices;
  for (int64_t j = 0; j < lone.mask.dim(); ++j) indices.push_back(chosen.rows.select(1, j));
  return first_rows(at::index(self, indices), chosen.count);
}

// self[mask] = value: filling.
at::Tensor put_by_mask(const at::Tensor& self, const LoneMask& lone, const at::Tensor& values,
                       bool in_place) {
  check_mask(self, lone.mask, lone.first);
  std::vector<int64_t> sizes = lone.mask.sizes().vec();
  sizes.resize(static_cast<size_t>(self.dim() - lone.first), 1);
  const at::Tensor mask = lone.mask.to(at::kBool).reshape(sizes), value = values.reshape({});
  return in_place ? at::Tensor(self).masked_fill_(mask, value) : at::masked_fill(self, mask, value);
}

// The call's result where it needs no integer indices.
std::optional<at::Tensor> by_lone_mask(const OperatorInfo& info, const LoneMask& lone,
                                       std::span<const c10::IValue> arguments) {
  if (!lone.mask.defined() || info.arguments.back().is_out) return std::nullopt;
  const at::Tensor& self = arguments[0].toTensor();
  if (arguments.size() == 2) return take_by_mask(self, lone);
  const at::Tensor& values = arguments[2].toTensor();  // then accumulate
  if (values.numel() != 1 || arguments[3].toBool()) return std::nullopt;
  return put_by_mask(self, lone, values, info.returns[0].alias == 0);
}

void check_values(const OperatorInfo& info, std::span<const c10::IValue> arguments) {
  if (arguments.size() < 4 || info.arguments[2].name != "values") return;
  const at::Tensor &self = arguments[0].toTensor(), &values = arguments[2].toTensor();
  TORCH_CHECK(self.scalar_type() == values.scalar_type(),
              "Index put requires the source and destination dtypes match, got ",
              self.scalar_type(), " for the destination and ", values.scalar_type(),
              " for the source.");
}

}  // namespace

at::Tensor first_rows(const at::Tensor& padded, int64_t count) {
  const at::Tensor rows = padded.narrow(0, 0, count);
  const bool wasteful = padded.nbytes() - rows.nbytes() > kMaxPaddedBytes;
  return wasteful ? rows.clone() : rows;
}

at::Tensor NonzeroRows::exact() const { return first_rows(rows, count); }

NonzeroRows nonzero_rows(const at::Tensor& self) {
  require_real_values("nonzero");
  NonzeroRows out;
  out.rows = at::nonzero_static(self, self.numel(), 0);
  if (self.numel() > 0) out.count = at::count_nonzero(self).item<int64_t>();
  return out;
}

void IndexingFunctor::operator()(const c10::OperatorHandle& op, c10::DispatchKeySet,
                                 torch::jit::Stack* stack) {
  // All of them begin with (self, indices); those that write go on with values, accumulate.
  const size_t first = stack->size() - info_.arguments.size();
  TORCH_CHECK(is_tpu((*stack)[first].toTensor()),
              "indices should be either on cpu or on the same device as the indexed tensor (",
              (*stack)[first].toTensor().device(), ")");
  if (!needs_work((*stack)[first + 1])) {
    check_values(info_, {stack->data() + first, info_.arguments.size()});
    dispatch(info_, op, *stack);
    return;
  }
  with_torch_errors(info_.name.c_str(), [&] {
    const std::span<c10::IValue> arguments(stack->data() + first, info_.arguments.size());
    const at::Tensor self = arguments[0].toTensor();
    Indices indices = indices_of(arguments[1]);
    check_host_indices(self, indices);
    for (at::Tensor& t : indices) {
      if (t.defined() && !is_tpu(t)) t = t.to(self.device());
    }
    if (std::optional<at::Tensor> result = by_lone_mask(info_, lone_mask(indices), arguments)) {
      torch::jit::drop(*stack, arguments.size());
      stack->emplace_back(std::move(*result));
      return;
    }
    indices = without_masks(self, indices);
    check_broadcast(indices);
    arguments[1] = to_ivalue(indices);
    check_values(info_, arguments);
    dispatch(info_, op, *stack);
  });
}

}  // namespace torch_tpu::eager
