// One call's tensors, numbers and signature, gathered in a single pass over its arguments.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/stack.h>

#include <array>
#include <span>

#include "eager/device_storage.h"
#include "eager/operator_info.h"
#include "eager/precision.h"

namespace torch_tpu::eager {

// A 0-d operand: 16 bytes hold any element type (i1, i64, f64, complex<f64>, or the type of a
// 0-d CPU tensor).
struct NumberOperand {
  stablehlo::ElementType type = stablehlo::ElementType::kF64;
  std::array<uint64_t, 2> bits{};

  bool operator==(const NumberOperand&) const = default;
};

struct CallState {
  std::vector<uint64_t> key;  // the signature
  // The distinct storages among the arguments, and what they hold. A storage's place here is its
  // slot.
  std::vector<DeviceStorage*> storages;
  std::vector<Contents> contents;
  std::vector<NumberOperand> numbers;  // operands, in the order of the arguments
  std::optional<at::Generator> generator;
  int device = -1;

  uint32_t num_tensors = 0;             // on tpu, storages shared by several counted as often
  std::vector<uint32_t> layout_places;  // where the key holds a Layout's address

  // A tensor that shows a part of a filled storage.
  struct PartialView {
    uint32_t tensor;        // counted over the call's tpu tensors, in the order of the arguments
    uint32_t offset_place;  // of its offset in the key; sizes and strides follow
    uint32_t rank;
    uint32_t slot;
  };
  std::vector<PartialView> partial_views;
  // Of these, the ones whose starts are operands (see moving_views.h): for each dimension of the
  // base that box.moves(), the next one in `numbers`, from first_number on.
  struct MovingView {
    uint32_t tensor;
    uint32_t first_number;
    lowering::BaseBox box;
  };
  std::vector<MovingView> moving;

  // How products of float32 are taken, where the signature says so; else 0.
  PrecisionCode precision() const;
  void set_precision(PrecisionCode code);

  void clear();
  int slot(DeviceStorage& storage);  // adds it when new
  int find_slot(const DeviceStorage& storage) const;

 private:
  size_t index_place(const DeviceStorage& storage) const;
  void index(size_t slot);

  // Only for many storages: slots by the storages' addresses, plus one; 0 where there is none. A
  // power of two of them, at most half of it used.
  std::vector<uint32_t> index_;
};

// Fills `state` from the arguments. `all_known`: every number becomes part of the signature.
// Throws c10::Error when tensors are on different devices.
void gather(const OperatorInfo& info, std::span<const c10::IValue> arguments, bool all_known,
            CallState& state);

// The same for a list of values that no operator's schema describes: tpu tensors, whole numbers and
// None. Numbers are part of the signature, and so are the precision and the default dtype.
void gather_values(std::span<const c10::IValue> values, CallState& state);

// A CallState of this thread's pool for the time of a call (calls nest).
class ScopedCallState {
 public:
  ScopedCallState();
  ~ScopedCallState();
  ScopedCallState(const ScopedCallState&) = delete;
  ScopedCallState& operator=(const ScopedCallState&) = delete;
  CallState& operator*() const { return *state_; }
  CallState* operator->() const { return state_; }

 private:
  CallState* state_;
};

// A number argument known while lowering? Exact 0, 1 and -1 are, and bools.
bool is_special_number(const c10::IValue& value);
NumberOperand number_operand(const c10::IValue& value);
// The number as a constant of a program.
lowering::Number known_number(const c10::IValue& value);
// The value of a 0-d (or one-element) CPU tensor.
NumberOperand number_operand(const at::Tensor& cpu_scalar);
inline bool is_cpu_scalar(const at::Tensor& t) {
  return t.defined() && t.dim() == 0 && t.device().is_cpu();
}

}  // namespace torch_tpu::eager
