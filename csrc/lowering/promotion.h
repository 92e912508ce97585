// PyTorch's type promotion, and the types arithmetic is done in.
// Source of the rules: https://docs.pytorch.org/docs/stable/tensor_attributes.html#torch-dtype
#pragma once

#include "lowering/call.h"

namespace torch_tpu::lowering {

// torch.promote_types
ElementType promote_types(ElementType a, ElementType b);

// The dtype TensorIterator computes in: tensors with dimensions outweigh 0-d tensors, which
// outweigh Python numbers, as long as the category (bool < integer < float < complex) does not
// rise. `names` may name tensors or numbers; absent arguments are passed over.
ElementType result_type(const Call& call, std::initializer_list<std::string_view> names);

// PyTorch's default dtype, for the time of a scope on this thread; float32 outside of any.
class DefaultFloat {
 public:
  explicit DefaultFloat(ElementType type);
  ~DefaultFloat();
  DefaultFloat(const DefaultFloat&) = delete;
  DefaultFloat& operator=(const DefaultFloat&) = delete;

  static ElementType current();

 private:
  const ElementType previous_;
};

// Integers and bools become the default dtype, others stay.
ElementType to_floating(ElementType type);

// The type PyTorch computes a pointwise function of `type` in: bfloat16 and float16 (and float8)
// compute in float32, others in themselves.
ElementType compute_type(ElementType type);

// PyTorch's conversion: floats out of a narrow integer's range wrap around, those out of
// float8_e4m3fn's range become its largest.
Value cast(Value value, ElementType dtype);

// `value` as a `type` holds it, in its own type: not a conversion there and back, which a compiler
// may drop.
Value rounded_to(Value value, ElementType type);

// `value` as a tensor of the given dtype, broadcast to `dims`.
Value as(Value value, ElementType dtype, const Dims& dims);

// Named tensor or number arguments, converted to `dtype` and broadcast to a common shape.
Values broadcast_arguments(const Call& call, std::initializer_list<std::string_view> names,
                           ElementType dtype);

}  // namespace torch_tpu::lowering
