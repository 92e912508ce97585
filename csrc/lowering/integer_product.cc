#include "lowering/integer_product.h"

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <numeric>
#include <optional>

namespace torch_tpu::lowering {

using namespace stablehlo;

namespace {

bool contains(const Dims& dims, int64_t dim) {
  return std::find(dims.begin(), dims.end(), dim) != dims.end();
}

Dims free_dims(Value value, const Dims& batching, const Dims& contracting) {
  Dims free;
  for (int64_t i = 0; i < value.rank(); ++i) {
    if (!contains(batching, i) && !contains(contracting, i)) free.push_back(i);
  }
  return free;
}

// `count` numbers from `first` on.
Dims range(int64_t first, size_t count) {
  Dims dims(count);
  std::iota(dims.begin(), dims.end(), first);
  return dims;
}

Dims joined(std::initializer_list<Dims> parts) {
  Dims all;
  for (const Dims& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

Dims sizes(Value value, const Dims& dims) {
  Dims result;
  for (const int64_t dim : dims) result.push_back(value.dims()[dim]);
  return result;
}

int64_t at(const Dims& dims, size_t index, int64_t otherwise) {
  return dims.empty() ? otherwise : dims[index];
}

Value reduce_last(Value value, size_t count) {
  return reduce_sum(value, range(value.rank() - static_cast<int64_t>(count), count));
}

// Moves the groups from the batch to the features: lhs [g*n, c, ...] -> [n, g*c, ...].
Value batch_groups_as_feature_groups(Value lhs, int64_t groups) {
  const Dims& before = lhs.dims();
  Dims split = {groups, before[0] / groups};
  split.insert(split.end(), before.begin() + 1, before.end());
  Dims order = range(0, split.size());
  std::swap(order[0], order[1]);
  Dims after = before;
  after[0] = before[0] / groups;
  after[1] = groups * before[1];
  return reshape(transpose(reshape(lhs, split), order), after);
}

// lhs [n, g*i, ...] and rhs [g*o, i, ...], what is outside the input added. The products of one
// place of the kernel are a dot; their sum over all places is [g, n, output..., o].
Value sum_over_kernel(Value lhs, Value rhs, const ConvolutionWindow& window, const Dims& output) {
  const int64_t groups = window.feature_groups, spatial = lhs.rank() - 2;
  const int64_t inputs = rhs.dims()[1], outputs = rhs.dims()[0] / groups;
  const Dims kernel(rhs.dims().begin() + 2, rhs.dims().end());
  const int64_t places =
      std::accumulate(kernel.begin(), kernel.end(), int64_t{1}, std::multiplies<>());
  std::optional<Value> sum;
  for (int64_t place = 0; place < places; ++place) {
    Dims start = {0, 0}, limit = {lhs.dims()[0], lhs.dims()[1]}, stride = {1, 1};
    Dims kernel_start = {0, 0}, kernel_limit = {rhs.dims()[0], inputs};
    int64_t rest = place;
    for (int64_t i = spatial - 1; i >= 0; --i) {
      const int64_t position = rest % kernel[i];
      rest /= kernel[i];
      const int64_t step = at(window.strides, i, 1);
      const int64_t first = position * at(window.rhs_dilation, i, 1);
      start.insert(start.begin() + 2, first);
      limit.insert(limit.begin() + 2, output[i] > 0 ? first + (output[i] - 1) * step + 1 : first);
      stride.insert(stride.begin() + 2, step);
      kernel_start.insert(kernel_start.begin() + 2, position);
      kernel_limit.insert(kernel_limit.begin() + 2, position + 1);
    }
    const Value window_values = reshape(slice(lhs, start, limit, stride),
                                        joined({{lhs.dims()[0], groups, inputs}, output}));
    const Value weights =
        reshape(slice(rhs, kernel_start, kernel_limit), {groups, outputs, inputs});
    const Value product = integer_dot(window_values, weights, {{1}, {0}, {2}, {2}});
    sum = sum ? add(*sum, product) : product;
  }
  if (sum) return *sum;
  const Dims dims = joined({{groups, lhs.dims()[0]}, output, {outputs}});
  return splat(lhs.builder(), TensorType{lhs.dtype(), dims}, 0);
}

}  // namespace

bool needs_written_out_product(ElementType type) {
  return is_integer(type) && bit_width(type) == 64;
}

// Products in one large array, summed along its end; the compiler fuses the two.
Value integer_dot(Value lhs, Value rhs, const DotDims& dims) {
  const Dims lhs_free = free_dims(lhs, dims.lhs_batching, dims.lhs_contracting);
  const Dims rhs_free = free_dims(rhs, dims.rhs_batching, dims.rhs_contracting);
  const size_t batch = dims.lhs_batching.size(), contracted = dims.lhs_contracting.size();
  const Dims all = joined({sizes(lhs, dims.lhs_batching), sizes(lhs, lhs_free),
                           sizes(rhs, rhs_free), sizes(lhs, dims.lhs_contracting)});
  const auto rhs_first = static_cast<int64_t>(batch + lhs_free.size());
  const auto contracted_first = rhs_first + static_cast<int64_t>(rhs_free.size());
  const Value l = broadcast_in_dim(
      transpose(lhs, joined({dims.lhs_batching, lhs_free, dims.lhs_contracting})), all,
      joined({range(0, batch + lhs_free.size()), range(contracted_first, contracted)}));
  const Value r = broadcast_in_dim(
      transpose(rhs, joined({dims.rhs_batching, rhs_free, dims.rhs_contracting})), all,
      joined({range(0, batch), range(rhs_first, rhs_free.size() + contracted)}));
  const Value products = multiply(l, r);
  return contracted == 0 ? products : reduce_last(products, contracted);
}

Value integer_convolution(Value lhs, Value rhs, const ConvolutionDims& dims,
                          const ConvolutionWindow& window) {
  const auto spatial = static_cast<int64_t>(dims.input_spatial.size());
  Value input =
      transpose(lhs, joined({{dims.input_batch, dims.input_feature}, dims.input_spatial}));
  Value kernel = transpose(
      rhs, joined({{dims.kernel_output_feature, dims.kernel_input_feature}, dims.kernel_spatial}));
  ConvolutionWindow grouped = window;
  if (window.batch_groups > 1) {
    input = batch_groups_as_feature_groups(input, window.batch_groups);
    grouped.feature_groups = window.batch_groups;
  }

  Dims reversed, low = {0, 0}, high = {0, 0}, interior = {0, 0};
  for (int64_t i = 0; i < spatial; ++i) {
    if (!window.reversal.empty() && window.reversal[i]) reversed.push_back(i + 2);
    low.push_back(at(window.padding_low, i, 0));
    high.push_back(at(window.padding_high, i, 0));
    interior.push_back(at(window.lhs_dilation, i, 1) - 1);
  }
  if (!reversed.empty()) kernel = reverse(kernel, reversed);
  input = pad(input, scalar(input.builder(), input.dtype(), 0), low, high, interior);

  Dims output;
  for (int64_t i = 0; i < spatial; ++i) {
    const int64_t reach = (kernel.dims()[i + 2] - 1) * at(window.rhs_dilation, i, 1) + 1;
    const int64_t room = input.dims()[i + 2] - reach;
    output.push_back(room < 0 ? 0 : room / at(window.strides, i, 1) + 1);
  }
  // [g, n, output..., o] -> [n, g*o, output...], then each dimension to its place.
  const Value sum = sum_over_kernel(input, kernel, grouped, output);
  Dims order = {1, 0, sum.rank() - 1};
  for (int64_t i = 0; i < spatial; ++i) order.push_back(i + 2);
  const Value result =
      reshape(transpose(sum, order), joined({{input.dims()[0], kernel.dims()[0]}, output}));
  Dims place(static_cast<size_t>(spatial) + 2);
  place[dims.output_batch] = 0;
  place[dims.output_feature] = 1;
  for (int64_t i = 0; i < spatial; ++i) place[dims.output_spatial[i]] = i + 2;
  return transpose(result, place);
}

}  // namespace torch_tpu::lowering
