// Registers the device's kernels with PyTorch's dispatcher.

#include <torch/library.h>

#include "eager/copy.h"
#include "eager/data_dependent.h"
#include "eager/device_context.h"
#include "eager/dispatch.h"
#include "eager/factories.h"
#include "eager/filling.h"
#include "eager/linear_algebra.h"
#include "eager/list_numbers.h"
#include "eager/number_checks.h"
#include "eager/value_checks.h"
#include "eager/view_ops.h"

namespace torch_tpu::eager {

namespace {

using c10::DispatchKey;

// A rule serves every overload of its operator that PyTorch does not split into others before
// autograd.
void register_rules(torch::Library& aten) {
  const lowering::Registry& rules = lowering::Registry::instance();
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (!name.name.starts_with("aten::") || name.name == "aten::copy_" ||
        !rules.find(name.name, name.overload_name)) {
      continue;
    }
    const std::optional<c10::OperatorHandle> op = dispatcher.findSchema(name);
    if (!op || op->hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd) ||
        op->hasKernelForDispatchKey(DispatchKey::PrivateUse1)) {
      continue;
    }
    const std::string qualified =
        name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    aten.impl(qualified.c_str(), torch::CppFunction::makeFromBoxedFunctor(
                                     std::make_unique<OperatorFunctor>(operator_info(*op))));
  }
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(empty_strided));
  m.impl("arange", TORCH_FN(arange));
  m.impl("arange.start", TORCH_FN(arange_start));
  m.impl("arange.start_step", TORCH_FN(arange_start_step));
  m.impl("_efficientzerotensor", TORCH_FN(efficient_zero_tensor));
  m.impl("as_strided", TORCH_FN(as_strided));
  m.impl("view", TORCH_FN(view));
  m.impl("_reshape_alias", TORCH_FN(reshape_alias));
  m.impl("unfold", TORCH_FN(unfold));
  m.impl("view_as_real", TORCH_FN(view_as_real));
  m.impl("view_as_complex", TORCH_FN(view_as_complex));
  m.impl("resize_", TORCH_FN(resize_));
  m.impl("set_", TORCH_FN(set_));
  m.impl("set_.source_Storage", TORCH_FN(set_storage_));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage_offset_));
  m.impl("set_.source_Tensor", TORCH_FN(set_tensor_));
  m.impl("copy_", TORCH_FN(copy_));
  m.impl("_copy_from", TORCH_FN(copy_from));
  m.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  m.impl("_local_scalar_dense", TORCH_FN(local_scalar));
  m.impl("_has_compatible_shallow_copy_type", TORCH_FN(has_compatible_shallow_copy_type));
  register_data_dependent(m);
  register_linear_algebra(m);
  register_list_numbers(m);
  register_number_checks(m);
  register_filling(m);
  register_value_checks(m);
  register_rules(m);
}

// Module.to asks before autograd is left.
TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  m.impl("_has_compatible_shallow_copy_type", TORCH_FN(has_compatible_shallow_copy_type));
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&dispatch_fallback>());
}

}  // namespace

}  // namespace torch_tpu::eager
