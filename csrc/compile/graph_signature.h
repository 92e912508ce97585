// What a program of a graph was made for, in words: why there is another one.
#pragma once

#include <string>
#include <vector>

#include "compile/tensor_form.h"
#include "eager/call_state.h"

namespace torch_tpu::compile {

class GraphSignature {
 public:
  // Of values as CompiledGraph takes them; `num_given` of them are the call's, the others the
  // graph's own.
  GraphSignature(const std::vector<c10::IValue>& values, size_t num_given,
                 const eager::CallState& state);

  // How far it is from another one of the same graph, and the first difference: "input 2: dimension
  // 1 is 48, was 32".
  struct Difference {
    int count = 0;
    std::string first;
  };
  Difference from(const GraphSignature& before) const;

 private:
  struct Value {
    enum class Kind : uint8_t { kNone, kInteger, kTensor } kind = Kind::kNone;
    int64_t integer = 0;
    TensorForm form;
    int slot = -1;
    const runtime::Layout* base = nullptr;  // null: unfilled
  };

  std::vector<Value> values_;
  size_t num_given_ = 0;
  uint64_t settings_ = 0;  // the key's first word: precision and default dtype
  eager::PrecisionCode precision_ = 0;
};

}  // namespace torch_tpu::compile
