#include "eager/linear_algebra.h"

#include <ATen/Functions.h>
#include <ATen/native/LinearAlgebraUtils.h>
#include <ATen/native/Resize.h>

#include "eager/device_storage.h"
#include "eager/dispatch.h"

namespace torch_tpu::eager {

namespace {

// The older interface raises at once, and takes an empty tensor of any shape.
at::Tensor cholesky_or_throw(const at::Tensor& self, bool upper) {
  if (self.numel() == 0) return at::empty_like(self, at::MemoryFormat::Contiguous);
  const auto [factor, info] = at::linalg_cholesky_ex(self, upper, /*check_errors=*/false);
  at::_linalg_check_errors(info, "cholesky", self.dim() == 2);
  return factor;
}

at::Tensor& cholesky_out(const at::Tensor& self, bool upper, at::Tensor& out) {
  at::native::checkLinalgCompatibleDtype("cholesky", out, self);
  const at::Tensor result = cholesky_or_throw(self, upper);
  at::native::resize_output(out, result.sizes());
  return out.copy_(result);
}

// Some drivers give residuals if every matrix has full rank, and an empty tensor otherwise. The
// rule serves all other calls.
class LeastSquaresFunctor : public c10::OperatorKernel {
 public:
  explicit LeastSquaresFunctor(const OperatorInfo& info) : info_(info) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    const size_t first = stack->size() - info_.arguments.size();
    const std::span<const c10::IValue> arguments(stack->data() + first, info_.arguments.size());
    if (!residuals_depend_on_rank(arguments)) {
      dispatch(info_, op, *stack);
      return;
    }
    const at::Tensor a = arguments[0].toTensor(), b = arguments[1].toTensor();
    const auto rcond = arguments[2].toOptional<double>();
    auto [solution, residuals, rank, none] = at::linalg_lstsq(a, b, rcond, "gelsy");
    if (rank.eq(a.size(-1)).all().item<bool>()) {
      residuals = std::get<1>(at::linalg_lstsq(a, b, std::nullopt, "gels"));
    }
    const at::Tensor values = at::linalg_svdvals(a);
    torch::jit::drop(*stack, info_.arguments.size());
    for (const at::Tensor& result : {solution, residuals, rank, values})
      stack->emplace_back(result);
  }

 private:
  static bool residuals_depend_on_rank(std::span<const c10::IValue> arguments) {
    const at::Tensor a = arguments[0].toTensor();
    if (!is_tpu(a) || a.dim() < 2 || a.numel() == 0 || arguments[3].isNone()) return false;
    const std::string& driver = arguments[3].toStringRef();
    return (driver == "gelsd" || driver == "gelss") && a.size(-2) > a.size(-1);
  }

  const OperatorInfo& info_;
};

}  // namespace

void register_linear_algebra(torch::Library& aten) {
  aten.impl("cholesky", TORCH_FN(cholesky_or_throw));
  aten.impl("cholesky.out", TORCH_FN(cholesky_out));
  const c10::OperatorHandle lstsq =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::linalg_lstsq", "");
  aten.impl("linalg_lstsq", torch::CppFunction::makeFromBoxedFunctor(
                                std::make_unique<LeastSquaresFunctor>(operator_info(lstsq))));
}

}  // namespace torch_tpu::eager
