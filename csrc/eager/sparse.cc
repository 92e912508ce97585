// Sparse tensors: indices and values live on the device, and are made, read and moved there; what
// is computed with them is computed on the CPU.
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/ops/_coalesced_native.h>
#include <ATen/ops/_indices_native.h>
#include <ATen/ops/_nnz_native.h>
#include <ATen/ops/_sparse_compressed_tensor_unsafe.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_and_tensors_native.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_native.h>
#include <ATen/ops/_values_native.h>
#include <ATen/ops/ccol_indices_native.h>
#include <ATen/ops/clone_native.h>
#include <ATen/ops/col_indices_native.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/copy_sparse_to_sparse_native.h>
#include <ATen/ops/crow_indices_native.h>
#include <ATen/ops/dense_dim_native.h>
#include <ATen/ops/empty_like_native.h>
#include <ATen/ops/empty_native.h>
#include <ATen/ops/indices_native.h>
#include <ATen/ops/is_coalesced_native.h>
#include <ATen/ops/resize_as_sparse_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/row_indices_native.h>
#include <ATen/ops/sparse_dim_native.h>
#include <ATen/ops/sparse_resize_and_clear_native.h>
#include <ATen/ops/sparse_resize_native.h>
#include <ATen/ops/values_native.h>
#include <ATen/ops/zero_native.h>
#include <torch/library.h>

#include "eager/device_context.h"
#include "eager/dispatch.h"

namespace torch_tpu::eager {

namespace {

bool is_compressed(const at::Tensor& t) {
  switch (t.layout()) {
    case c10::kSparseCsr:
    case c10::kSparseCsc:
    case c10::kSparseBsr:
    case c10::kSparseBsc:
      return true;
    default:
      return false;
  }
}

// A copy on another device, in the same layout.
at::Tensor moved(const at::Tensor& t, c10::Device device) {
  if (!t.defined() || t.device() == device) return t;
  if (t.is_sparse()) {
    return at::_sparse_coo_tensor_unsafe(t._indices().to(device), t._values().to(device), t.sizes(),
                                         t.options().device(device), t.is_coalesced());
  }
  if (is_compressed(t)) {
    const bool rows = t.layout() == c10::kSparseCsr || t.layout() == c10::kSparseBsr;
    const at::Tensor compressed = rows ? t.crow_indices() : t.ccol_indices();
    const at::Tensor plain = rows ? t.col_indices() : t.row_indices();
    return at::_sparse_compressed_tensor_unsafe(compressed.to(device), plain.to(device),
                                                t.values().to(device), t.sizes(),
                                                t.options().device(device));
  }
  return t.to(device);
}

c10::IValue moved(const c10::IValue& value, c10::Device device) {
  if (value.isTensor()) return moved(value.toTensor(), device);
  if (value.isTensorList()) {
    std::vector<at::Tensor> out;
    for (const at::Tensor& t : value.toTensorVector()) out.push_back(moved(t, device));
    return out;
  }
  if (value.isDevice()) return device;
  return value;
}

// What an operator has written into `host`, a copy of `tensor`.
void write_back(const at::Tensor& host, const at::Tensor& tensor) {
  if (host.layout() == c10::kStrided) {
    if (tensor.sizes() != host.sizes()) tensor.resize_(host.sizes());
    tensor.copy_(host);
    return;
  }
  tensor.unsafeGetTensorImpl()->shallow_copy_from(moved(host, tensor.device()).getIntrusivePtr());
}

// Any operator with a sparse argument that has no kernel below.
void compute_on_cpu(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const OperatorInfo& info = operator_info(op);
  announce_fallback(info, "it has a sparse argument");
  const auto& schema = op.schema();
  const size_t count = schema.arguments().size();
  const std::vector<c10::IValue> arguments(stack->end() - static_cast<std::ptrdiff_t>(count),
                                           stack->end());
  stack->resize(stack->size() - count);

  c10::Device device(kTpu, static_cast<c10::DeviceIndex>(current_device()));
  std::vector<c10::IValue> on_cpu;
  for (const c10::IValue& a : arguments) {
    if (a.isTensor() && a.toTensor().defined() && a.toTensor().device().type() == kTpu) {
      device = a.toTensor().device();
    }
    on_cpu.push_back(moved(a, c10::kCPU));
    // Kernels ask whether to keep what only gradients need.
    if (a.isTensor() && a.toTensor().defined() && a.toTensor().requires_grad() &&
        !on_cpu.back().toTensor().requires_grad()) {
      on_cpu.back().toTensor().set_requires_grad(true);
    }
  }
  torch::jit::Stack results(on_cpu.begin(), on_cpu.end());
  op.callBoxed(results);

  for (size_t i = 0; i < count; ++i) {
    const c10::AliasInfo* alias = schema.arguments()[i].alias_info();
    if (alias && alias->isWrite() && arguments[i].isTensor() && arguments[i].toTensor().defined()) {
      write_back(on_cpu[i].toTensor(), arguments[i].toTensor());
    }
  }
  for (size_t r = 0; r < schema.returns().size(); ++r) {
    const c10::AliasInfo* alias = schema.returns()[r].alias_info();
    std::optional<c10::IValue> written;
    for (size_t i = 0; alias && alias->isWrite() && i < count; ++i) {
      const c10::AliasInfo* other = schema.arguments()[i].alias_info();
      if (other && other->isWrite() && other->beforeSets() == alias->beforeSets()) {
        written = arguments[i];
      }
    }
    stack->push_back(written ? *written : moved(results[r], device));
  }
}

TORCH_LIBRARY_IMPL(_, SparsePrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&compute_on_cpu>());
}

TORCH_LIBRARY_IMPL(_, SparseCsrPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&compute_on_cpu>());
}

// PyTorch's own kernels, which only handle the parts.
TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) {
  m.impl("_sparse_coo_tensor_with_dims", TORCH_FN(at::native::new_with_dims_sparse));
  m.impl("_sparse_coo_tensor_with_dims_and_tensors",
         TORCH_FN(at::native::new_with_dims_and_tensor_sparse_symint));
  m.impl("sparse_resize_", TORCH_FN(at::native::sparse_resize_));
  m.impl("sparse_resize_and_clear_", TORCH_FN(at::native::sparse_resize_and_clear_));
  m.impl("resize_as_sparse_", TORCH_FN(at::native::resize_as_sparse_));
  m.impl("sparse_dim", TORCH_FN(at::native::sparse_dim_sparse));
  m.impl("dense_dim", TORCH_FN(at::native::dense_dim_sparse));
  m.impl("_dimI", TORCH_FN(at::native::sparse_dim_sparse));
  m.impl("_dimV", TORCH_FN(at::native::dense_dim_sparse));
  m.impl("_nnz", TORCH_FN(at::native::_nnz_sparse));
  m.impl("is_coalesced", TORCH_FN(at::native::is_coalesced_sparse));
  m.impl("_coalesced_", TORCH_FN(at::native::_coalesced_sparse_));
  m.impl("_indices", TORCH_FN(at::native::_indices_sparse));
  m.impl("_values", TORCH_FN(at::native::_values_sparse));
  m.impl("indices", TORCH_FN(at::native::indices_sparse));
  m.impl("values", TORCH_FN(at::native::values_sparse));
  m.impl("clone", TORCH_FN(at::native::clone_sparse));
  m.impl("copy_sparse_to_sparse_", TORCH_FN(at::native::copy_sparse_));
  m.impl("copy_", TORCH_FN(at::native::copy_sparse_wrapper_));
  m.impl("zero_", TORCH_FN(at::native::zero_sparse_));
  m.impl("empty.memory_format", TORCH_FN(at::native::empty_sparse_symint));
  m.impl("empty_like", TORCH_FN(at::native::empty_like_sparse_coo));
}

TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, m) {
  m.impl("sparse_dim", TORCH_FN(at::native::sparse_dim_sparse_csr));
  m.impl("dense_dim", TORCH_FN(at::native::dense_dim_sparse_csr));
  m.impl("_nnz", TORCH_FN(at::native::_nnz_sparse_csr));
  m.impl("crow_indices", TORCH_FN(at::native::crow_indices_sparse_csr));
  m.impl("col_indices", TORCH_FN(at::native::col_indices_sparse_csr));
  m.impl("ccol_indices", TORCH_FN(at::native::ccol_indices_sparse_csr));
  m.impl("row_indices", TORCH_FN(at::native::row_indices_sparse_csr));
  m.impl("values", TORCH_FN(at::native::values_sparse_csr));
  m.impl("clone", TORCH_FN(at::native::clone_sparse_compressed));
  m.impl("copy_", TORCH_FN(at::native::copy_sparse_compressed_));
  m.impl("resize_", TORCH_FN(at::native::resize_sparse_csr_));
  m.impl("resize_as_sparse_", TORCH_FN(at::native::resize_as_sparse_compressed_));
  m.impl("zero_", TORCH_FN(at::native::zero_sparse_csr_));
  m.impl("empty.memory_format", TORCH_FN(at::native::empty_sparse_compressed_symint));
  m.impl("empty_like", TORCH_FN(at::native::empty_like_sparse_csr));
  // Structured operators would be taken for their out= variant, with an `out` like the first
  // argument.
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (!name.name.starts_with("aten::")) continue;
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op ||
        !op->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional)) {
      continue;
    }
    const std::string qualified =
        name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    m.impl(qualified.c_str(), torch::CppFunction::makeFromBoxedFunction<&compute_on_cpu>());
  }
}

}  // namespace

}  // namespace torch_tpu::eager
