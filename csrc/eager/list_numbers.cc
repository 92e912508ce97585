#include "eager/list_numbers.h"

#include <ATen/ops/_foreach_addcdiv.h>
#include <ATen/ops/_foreach_addcmul.h>

#include "eager/trace.h"

namespace torch_tpu::eager {

namespace {

using Numbers = std::vector<at::Scalar>;

// Refuses in PyTorch's words.
Numbers numbers_in(const at::Tensor& scalars, size_t entries) {
  TORCH_CHECK(scalars.dim() == 1, "Expected packed scalar Tensor to be of dimension 1. Got ",
              scalars.dim(), " instead.");
  TORCH_CHECK(scalars.size(0) == static_cast<int64_t>(entries),
              "Expected length of scalars to match input of length ", entries, " but got ",
              scalars.size(0), " instead.");
  require_real_values("a list of numbers in a tensor");
  const at::Tensor host = scalars.cpu();
  Numbers numbers;
  numbers.reserve(entries);
  for (int64_t i = 0; i < host.size(0); ++i) numbers.push_back(host[i].item());
  return numbers;
}

std::vector<at::Tensor> addcdiv(at::TensorList self, at::TensorList tensor1, at::TensorList tensor2,
                                const at::Tensor& scalars) {
  return at::_foreach_addcdiv(self, tensor1, tensor2, numbers_in(scalars, self.size()));
}
std::vector<at::Tensor> addcmul(at::TensorList self, at::TensorList tensor1, at::TensorList tensor2,
                                const at::Tensor& scalars) {
  return at::_foreach_addcmul(self, tensor1, tensor2, numbers_in(scalars, self.size()));
}
void addcdiv_in_place(at::TensorList self, at::TensorList tensor1, at::TensorList tensor2,
                      const at::Tensor& scalars) {
  at::_foreach_addcdiv_(self, tensor1, tensor2, numbers_in(scalars, self.size()));
}
void addcmul_in_place(at::TensorList self, at::TensorList tensor1, at::TensorList tensor2,
                      const at::Tensor& scalars) {
  at::_foreach_addcmul_(self, tensor1, tensor2, numbers_in(scalars, self.size()));
}

}  // namespace

void register_list_numbers(torch::Library& aten) {
  aten.impl("_foreach_addcdiv.Tensor", TORCH_FN(addcdiv));
  aten.impl("_foreach_addcmul.Tensor", TORCH_FN(addcmul));
  aten.impl("_foreach_addcdiv_.Tensor", TORCH_FN(addcdiv_in_place));
  aten.impl("_foreach_addcmul_.Tensor", TORCH_FN(addcmul_in_place));
}

}  // namespace torch_tpu::eager
