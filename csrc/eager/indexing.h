// x[...] with masks and with index tensors on the CPU: what the rules do not take.
#pragma once

#include "eager/dispatch.h"

namespace torch_tpu::eager {

// The kernel of index, index_put and their like. Masks become integer indices (which waits for the
// device once, as their number decides the result's shape) and index tensors move to the device;
// then the rule goes on. x[mask] = scalar needs no waiting: it is a masked fill.
class IndexingFunctor : public c10::OperatorKernel {
 public:
  explicit IndexingFunctor(const OperatorInfo& info) : info_(info) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack);

 private:
  const OperatorInfo& info_;
};

// The coordinates of non-zero elements, a row each, and how many of the rows count: the others are
// zeros, so `rows` can be used as indices as a whole. Every shape is known without looking at the
// values, so that one program serves any count. Waits for the count.
struct NonzeroRows {
  at::Tensor rows;  // [self.numel(), self.dim()]
  int64_t count = 0;

  // The rows that count: a view where that does not keep much memory alive for nothing.
  at::Tensor exact() const;
};
NonzeroRows nonzero_rows(const at::Tensor& self);
// The first `count` of `padded`'s rows, likewise.
at::Tensor first_rows(const at::Tensor& padded, int64_t count);

}  // namespace torch_tpu::eager
