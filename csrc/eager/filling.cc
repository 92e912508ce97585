#include "eager/filling.h"

#include <ATen/Dispatch_v2.h>
#include <ATen/Functions.h>
#include <ATen/native/Resize.h>
#include <c10/core/DefaultDtype.h>

namespace torch_tpu::eager {

namespace {

void check_fits(const at::Scalar& value, c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Float:
    case c10::ScalarType::Double:
    case c10::ScalarType::Bool:
      if (value.isIntegral(/*includeBool=*/true)) return;  // the common case
      break;
    default:
      break;
  }
  if (!c10::isIntegralType(dtype, /*includeBool=*/true) && !at::isFloatingType(dtype)) return;
  if (c10::isFloat8Type(dtype)) return;
  AT_DISPATCH_V2(dtype, "fill", AT_WRAP([&] { static_cast<void>(value.to<scalar_t>()); }),
                 AT_EXPAND(AT_ALL_TYPES), AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES), at::kBool,
                 at::kHalf, at::kBFloat16);
}

// Fills a tensor of any dtype, which the meta kernel would refuse.
at::Tensor& bernoulli_out(const at::Tensor& self, std::optional<at::Generator> generator,
                          at::Tensor& out) {
  at::native::resize_output(out, self.sizes());
  return out.bernoulli_(self, std::move(generator));
}

}  // namespace

FillingFunctor::FillingFunctor(const OperatorInfo& info)
    : info_(info), promotes_(info.name.starts_with("aten::clamp")) {
  for (size_t i = 0; i < info.arguments.size(); ++i) {
    if (info.arguments[i].kind == ArgumentKind::kNumber) numbers_.push_back(i);
    if (info.arguments[i].kind == ArgumentKind::kDtype) dtype_ = i;
  }
}

void FillingFunctor::operator()(const c10::OperatorHandle& op, c10::DispatchKeySet,
                                torch::jit::Stack* stack) {
  const c10::IValue* const arguments = stack->data() + (stack->size() - info_.arguments.size());
  for (const size_t number : numbers_) {
    if (arguments[number].isNone()) continue;
    const at::Scalar value = arguments[number].toScalar();
    if (dtype_ && !arguments[*dtype_].isNone()) {
      check_fits(value, arguments[*dtype_].toScalarType());
    } else if (arguments[0].isTensor()) {
      const c10::ScalarType dtype = arguments[0].toTensor().scalar_type();
      // Beside a number of a higher category the dtype of the result is another one; floating-point
      // limits may be out of reach, as on CUDA.
      const bool fits_itself =
          c10::isIntegralType(dtype, /*includeBool=*/false) && value.isIntegral(true);
      if (!promotes_ || fits_itself) check_fits(value, dtype);
    } else if (value.isFloatingPoint()) {
      check_fits(value, c10::get_default_dtype_as_scalartype());
    }
  }
  dispatch(info_, op, *stack);
}

void register_filling(torch::Library& aten) {
  aten.impl("bernoulli.out", TORCH_FN(bernoulli_out));
  for (const char* overload :
       {"fill_.Scalar", "full", "full_like", "new_full", "masked_fill.Scalar",
        "masked_fill_.Scalar", "index_fill.int_Scalar", "index_fill_.int_Scalar", "scatter.value",
        "scatter_.value", "constant_pad_nd", "clamp", "clamp_", "clamp_min", "clamp_min_",
        "clamp_max", "clamp_max_"}) {
    const std::string name(overload);
    const size_t dot = name.find('.');
    const c10::OperatorHandle op = c10::Dispatcher::singleton().findSchemaOrThrow(
        ("aten::" + name.substr(0, dot)).c_str(),
        dot == std::string::npos ? "" : name.substr(dot + 1).c_str());
    aten.impl(overload, torch::CppFunction::makeFromBoxedFunctor(
                            std::make_unique<FillingFunctor>(operator_info(op))));
  }
}

}  // namespace torch_tpu::eager
