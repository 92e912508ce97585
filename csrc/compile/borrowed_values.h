// The values of a call, without a reference of their own to its tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <utility>
#include <vector>

namespace torch_tpu::compile {

// The first reference beside Python's counts in the Python object as well, for which PyTorch takes
// the GIL: more than everything else that a call does for a tensor. So the tensors of a call are
// borrowed from who keeps them until it has ended.
class BorrowedValues {
 public:
  explicit BorrowedValues(size_t room) { values_.reserve(room); }
  BorrowedValues(const BorrowedValues&) = delete;
  BorrowedValues& operator=(const BorrowedValues&) = delete;
  BorrowedValues(BorrowedValues&&) = default;
  ~BorrowedValues() {
    for (c10::IValue& value : values_) c10::MaybeOwnedTraits<c10::IValue>::destroyBorrow(value);
  }

  void borrow(const at::Tensor& t) {
    values_.emplace_back(c10::MaybeOwnedTraits<at::Tensor>::createBorrow(t));
  }
  // None or a number.
  void add_plain(c10::IValue value) { values_.push_back(std::move(value)); }
  // Tensors that nobody else keeps.
  void add(c10::IValue value) {
    kept_.push_back(std::move(value));
    values_.push_back(c10::MaybeOwnedTraits<c10::IValue>::createBorrow(kept_.back()));
  }
  void replace(size_t i, c10::IValue value) {
    kept_.push_back(std::move(value));
    c10::MaybeOwnedTraits<c10::IValue>::assignBorrow(values_[i], kept_.back());
  }

  const std::vector<c10::IValue>& operator*() const { return values_; }
  const std::vector<c10::IValue>* operator->() const { return &values_; }

 private:
  std::vector<c10::IValue> kept_;
  std::vector<c10::IValue> values_;
};

}  // namespace torch_tpu::compile
