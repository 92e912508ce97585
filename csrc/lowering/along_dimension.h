// Work on one dimension of a tensor by a pattern known while lowering: selecting, spreading and
// mixing its entries. Pooling, resampling and padding are made of these.
#pragma once

#include "lowering/call.h"

namespace torch_tpu::lowering {

// result[.., o, ..] = x[.., indices[o], ..]
Value take_along(Value x, int64_t dim, const Dims& indices);

// The transpose of take_along: result[.., i, ..], of `size` entries, is the sum of x[.., o, ..]
// over all o with indices[o] == i.
Value spread_along(Value x, int64_t dim, const Dims& indices, int64_t size);

// result[.., o, ..] = sum of x[.., starts[o] .. starts[o] + lengths[o] - 1, ..]
Value sum_ranges(Value x, int64_t dim, const Dims& starts, const Dims& lengths);

// A sparse matrix of outputs x inputs: output o is the sum over k of weights[k][o] times input
// indices[k][o].
struct Taps {
  int64_t inputs = 0;
  std::vector<Dims> indices;
  std::vector<std::vector<double>> weights;

  int64_t outputs() const { return static_cast<int64_t>(indices.at(0).size()); }
};

// result[.., o, ..] = sum over k of weights[k][o] * x[.., indices[k][o], ..]
Value mix_along(Value x, int64_t dim, const Taps& taps);
// Its transpose, from outputs back to inputs.
Value mix_back_along(Value x, int64_t dim, const Taps& taps);

// A 1-d constant which varies along `dim` of a tensor of `type`.
Value vary_along(Builder& b, const TensorType& type, int64_t dim, const Dims& values);

// Pads one dimension; negative amounts crop.
Value pad_along(Value x, int64_t dim, Value padding_value, int64_t low, int64_t high,
                int64_t interior = 0);

}  // namespace torch_tpu::lowering
