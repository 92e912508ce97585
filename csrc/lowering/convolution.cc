// Convolutions of any number of spatial dimensions, with their gradients, and im2col / col2im.
#include <algorithm>

#include "lowering/contraction.h"
#include "lowering/families.h"
#include "lowering/promotion.h"

namespace torch_tpu::lowering {

using namespace stablehlo;

namespace {

// A list argument with one entry for each spatial dimension; one entry serves them all.
Dims spatial(const Call& call, std::string_view name, int64_t count, int64_t otherwise) {
  Dims dims = call.ints(name);
  if (dims.empty()) dims = {otherwise};
  if (dims.size() == 1) dims.resize(count, dims[0]);
  return dims;
}

struct Geometry {
  int64_t count = 0;  // spatial dimensions
  Dims stride, padding, dilation, output_padding;
  int64_t groups = 1;
};

Geometry geometry(const Call& call, int64_t count) {
  return {count,
          spatial(call, "stride", count, 1),
          spatial(call, "padding", count, 0),
          spatial(call, "dilation", count, 1),
          spatial(call, "output_padding", count, 0),
          call.integer_or("groups", 1)};
}

Dims range(int64_t from, int64_t count) {
  Dims dims(count);
  for (int64_t i = 0; i < count; ++i) dims[i] = from + i;
  return dims;
}

ConvolutionDims channels_second(int64_t count) {
  ConvolutionDims dims;
  dims.input_spatial = dims.kernel_spatial = dims.output_spatial = range(2, count);
  return dims;
}

Value zeros(Builder& b, ElementType type, const Dims& dims) { return splat(b, {type, dims}, 0); }

// Negative padding crops. Done here, because not every compiler takes it inside a convolution.
Value crop(Value x, ConvolutionWindow& w, bool dilated) {
  bool negative = false;
  for (size_t i = 0; i < w.padding_low.size(); ++i) {
    negative |= w.padding_low[i] < 0 || w.padding_high[i] < 0;
  }
  if (!negative) return x;
  const size_t count = w.padding_low.size();
  Dims low(2, 0), high(2, 0), interior(2, 0);
  for (size_t i = 0; i < count; ++i) {
    low.push_back(w.padding_low[i]);
    high.push_back(w.padding_high[i]);
    interior.push_back(dilated ? w.lhs_dilation[i] - 1 : 0);
  }
  w.padding_low.assign(count, 0);
  w.padding_high.assign(count, 0);
  w.lhs_dilation.assign(count, 1);
  return pad(x, scalar(x.builder(), x.dtype(), 0), low, high, interior);
}

// y[n, o] = sum over i of w[o, i] * x[n, i], for w [out, in / groups, kernel...]; y has `sizes`.
Value correlate(Value x, Value w, const Geometry& g, const Dims& sizes) {
  ConvolutionWindow window{g.stride, g.padding, g.padding, Dims(g.count, 1), g.dilation};
  window.feature_groups = g.groups;
  for (int64_t i = 0; i < g.count; ++i) {
    const int64_t reach = g.dilation[i] * (w.dim(2 + i) - 1);
    const int64_t room = x.dim(2 + i) + 2 * g.padding[i] - reach - 1;
    // The input may end in elements that are not asked for: the output padding of a transpose.
    const int64_t surplus = room / g.stride[i] + 1 - sizes[i];
    window.padding_high[i] -= surplus * g.stride[i];
  }
  x = crop(x, window, false);
  return convolve(x, w, channels_second(g.count), window);
}

// [groups * a, b, ...] -> [groups * b, a, ...], within each group.
Value swap_channels(Value w, int64_t groups) {
  const int64_t a = w.dim(0) / groups, b = w.dim(1);
  const Dims kernel(w.dims().begin() + 2, w.dims().end());
  Dims split = {groups, a, b}, merged = {groups * b, a};
  split.insert(split.end(), kernel.begin(), kernel.end());
  merged.insert(merged.end(), kernel.begin(), kernel.end());
  Dims order = range(0, static_cast<int64_t>(split.size()));
  std::swap(order[1], order[2]);
  return reshape(transpose(reshape(w, split), order), merged);
}

// Kernels that lie side by side: no element of the result sees two of them.
bool is_blockwise(Value w, const Geometry& g) {
  for (int64_t i = 0; i < g.count; ++i) {
    const bool apart = g.dilation[i] == 1 || w.dim(2 + i) == 1;
    if (!apart || g.padding[i] != 0 || g.stride[i] < w.dim(2 + i)) return false;
  }
  return g.groups == 1;
}

// correlate_transposed of such kernels: a matrix product gives the blocks, which are then laid
// side by side.
Value place_blocks(Value y, Value w, const Geometry& g, const Dims& sizes) {
  const Value blocks = dot(y, w, {.lhs_contracting = {1}, .rhs_contracting = {0}});
  // [n, y sizes..., in, kernel...] to [n, in, y size, kernel, y size, kernel...]
  Dims order = {0, g.count + 1}, widen(2 + 2 * g.count, 0), dims = {y.dim(0), w.dim(1)};
  Dims crop(2 + g.count, 0);
  for (int64_t i = 0; i < g.count; ++i) {
    order.push_back(1 + i);
    order.push_back(g.count + 2 + i);
    widen[3 + 2 * i] = g.stride[i] - w.dim(2 + i);
    dims.push_back(y.dim(2 + i) * g.stride[i]);
    crop[2 + i] = sizes[i] - dims.back();
  }
  const Value zero = scalar(y.builder(), blocks.dtype(), 0);
  const Value apart = pad(transpose(blocks, order), zero, Dims(widen.size(), 0), widen);
  return pad(reshape(apart, dims), zero, Dims(crop.size(), 0), crop);
}

// The transpose of `correlate`: from y [n, out] and w [out, in / groups, kernel...] to
// x [n, in, sizes...].
Value correlate_transposed(Value y, Value w, const Geometry& g, const Dims& sizes) {
  if (is_blockwise(w, g)) return place_blocks(y, w, g, sizes);
  ConvolutionWindow window{Dims(g.count, 1), {}, {}, g.stride, g.dilation};
  window.feature_groups = g.groups;
  for (int64_t i = 0; i < g.count; ++i) {
    const int64_t reach = g.dilation[i] * (w.dim(2 + i) - 1);
    const int64_t low = reach - g.padding[i];
    const int64_t spread = (y.dim(2 + i) - 1) * g.stride[i] + 1;
    window.padding_low.push_back(low);
    window.padding_high.push_back(sizes[i] - spread - low + reach);
  }
  y = crop(y, window, true);
  const Value kernel = reverse(swap_channels(w, g.groups), range(2, g.count));
  return convolve(y, kernel, channels_second(g.count), window);
}

// [n, groups * c, ...] -> [c, groups * n, ...]
Value batch_into_channels(Value x, int64_t groups) {
  const int64_t n = x.dim(0), c = x.dim(1) / groups;
  const Dims sizes(x.dims().begin() + 2, x.dims().end());
  Dims split = {n, groups, c}, merged = {c, groups * n};
  split.insert(split.end(), sizes.begin(), sizes.end());
  merged.insert(merged.end(), sizes.begin(), sizes.end());
  Dims order = range(0, static_cast<int64_t>(split.size()));
  std::swap(order[0], order[2]);
  return reshape(transpose(reshape(x, split), order), merged);
}

// A matrix product over the channels of each element.
bool is_pointwise(const Geometry& g, const Dims& kernel) {
  const auto all = [](const Dims& dims, int64_t value) {
    return std::all_of(dims.begin(), dims.end(), [&](int64_t d) { return d == value; });
  };
  return g.groups == 1 && all(kernel, 1) && all(g.stride, 1) && all(g.padding, 0);
}

// The gradient of `correlate` in w: [out, in / groups, kernel...]. A correlation of the input with
// the output's gradient, summed over the batch, which takes the place of the channels. (Feature
// groups rather than batch groups: XLA's CPU compiler makes the latter dense.)
Value correlate_weight(Value x, Value y, const Geometry& g, const Dims& kernel) {
  if (is_pointwise(g, kernel)) {
    Dims summed = range(2, g.count);
    summed.insert(summed.begin(), 0);
    Dims dims = {y.dim(1), x.dim(1)};
    dims.insert(dims.end(), kernel.begin(), kernel.end());
    return reshape(dot(y, x, {.lhs_contracting = summed, .rhs_contracting = summed}), dims);
  }
  ConvolutionDims dims = channels_second(g.count);
  dims.kernel_output_feature = 1;
  dims.kernel_input_feature = 0;
  dims.output_batch = 1;
  dims.output_feature = 0;
  ConvolutionWindow window{g.dilation, g.padding, {}, Dims(g.count, 1), g.stride};
  window.feature_groups = g.groups;
  for (int64_t i = 0; i < g.count; ++i) {
    const int64_t spread = (y.dim(2 + i) - 1) * g.stride[i] + 1;
    const int64_t needed = (kernel[i] - 1) * g.dilation[i] + spread;
    window.padding_high.push_back(needed - x.dim(2 + i) - g.padding[i]);
  }
  x = batch_into_channels(crop(x, window, false), g.groups);
  return convolve(x, y, dims, window);
}

Dims spatial_sizes(Value x) { return Dims(x.dims().begin() + 2, x.dims().end()); }

Dims forward_sizes(const Geometry& g, Value x, Value w, bool transposed) {
  Dims sizes;
  for (int64_t i = 0; i < g.count; ++i) {
    const int64_t reach = g.dilation[i] * (w.dim(2 + i) - 1);
    const int64_t in = x.dim(2 + i);
    sizes.push_back(transposed ? (in - 1) * g.stride[i] - 2 * g.padding[i] + reach +
                                     g.output_padding[i] + 1
                               : (in + 2 * g.padding[i] - reach - 1) / g.stride[i] + 1);
  }
  return sizes;
}

Dims with_sizes(int64_t first, int64_t second, const Dims& sizes) {
  Dims dims = {first, second};
  dims.insert(dims.end(), sizes.begin(), sizes.end());
  return dims;
}

Value add_channel_bias(Value x, Value bias) {
  if (!bias) return x;
  return add(x, broadcast_in_dim(convert(bias, x.dtype()), x.dims(), {1}));
}

void require_batch(Value x) {
  if (x.rank() < 3) throw Unsupported("convolution: expected a batched input");
}

Values convolution_rule(Call& call) {
  const Value x = call.tensor("input"), w = call.tensor("weight");
  require_batch(x);
  const Geometry g = geometry(call, x.rank() - 2);
  const bool transposed = call.boolean("transposed");
  const Dims sizes = forward_sizes(g, x, w, transposed);
  const int64_t channels = transposed ? w.dim(1) * g.groups : w.dim(0);
  const Dims dims = with_sizes(x.dim(0), channels, sizes);
  Value y;
  if (product(dims) == 0 || x.numel() == 0 || w.numel() == 0) {
    y = zeros(call.builder(), accumulation_type(x.dtype()), dims);
  } else if (transposed) {
    y = correlate_transposed(x, w, g, sizes);
  } else {
    y = correlate(x, w, g, sizes);
  }
  return {convert(add_channel_bias(y, call.tensor_or_empty("bias")), x.dtype())};
}

Values convolution_backward(Call& call) {
  const Value grad = call.tensor("grad_output"), x = call.tensor("input"),
              w = call.tensor("weight");
  require_batch(x);
  const Geometry g = geometry(call, x.rank() - 2);
  const bool transposed = call.boolean("transposed");
  const std::vector<bool> wanted = call.bools("output_mask");
  const bool empty = grad.numel() == 0 || x.numel() == 0 || w.numel() == 0;
  Builder& b = call.builder();
  Values grads(3);
  if (wanted[0]) {
    const Value grad_x = empty        ? zeros(b, x.dtype(), x.dims())
                         : transposed ? correlate(grad, w, g, spatial_sizes(x))
                                      : correlate_transposed(grad, w, g, spatial_sizes(x));
    grads[0] = convert(grad_x, x.dtype());
  }
  if (wanted[1]) {
    // A transposed convolution maps the other way: its output is what `correlate` reads.
    const Value grad_w = empty        ? zeros(b, w.dtype(), w.dims())
                         : transposed ? correlate_weight(grad, x, g, spatial_sizes(w))
                                      : correlate_weight(x, grad, g, spatial_sizes(w));
    grads[1] = convert(grad_w, w.dtype());
  }
  if (wanted[2]) {
    Dims others = range(2, g.count);
    others.insert(others.begin(), 0);
    const Value sum = reduce_sum(convert(grad, accumulation_type(grad.dtype())), others);
    grads[2] = convert(sum, grad.dtype());
  }
  return grads;
}

// [time, batch, channels] with weights [kernel, in, out].
Values conv_tbc(Call& call) {
  const Value x = call.tensor("self"), w = call.tensor("weight");
  ConvolutionDims dims;
  dims.input_spatial = dims.kernel_spatial = dims.output_spatial = {0};
  dims.input_batch = dims.output_batch = 1;
  dims.input_feature = dims.output_feature = 2;
  dims.kernel_input_feature = 1;
  dims.kernel_output_feature = 2;
  const int64_t padding = call.integer_or("pad", 0);
  const Value y = convolve(x, w, dims, {{1}, {padding}, {padding}, {1}, {1}});
  const Value bias = broadcast_in_dim(convert(call.tensor("bias"), y.dtype()), y.dims(), {2});
  return {convert(add(y, bias), x.dtype())};
}

// --- im2col: the patches a convolution sees, as columns ------------------------------------------

struct Patches {
  Dims kernel, dilation, padding, stride;
  int64_t rows = 0, columns = 0;  // patches in each direction
};

Patches patches(const Call& call, int64_t height, int64_t width) {
  Patches p{spatial(call, "kernel_size", 2, 1), spatial(call, "dilation", 2, 1),
            spatial(call, "padding", 2, 0), spatial(call, "stride", 2, 1)};
  const auto count = [&](int i, int64_t size) {
    return (size + 2 * p.padding[i] - p.dilation[i] * (p.kernel[i] - 1) - 1) / p.stride[i] + 1;
  };
  p.rows = count(0, height);
  p.columns = count(1, width);
  return p;
}

Value batched(Value x, int64_t rank) { return x.rank() == rank ? x : expand_dim(x, 0); }

Values im2col(Call& call) {
  const Value self = call.tensor("self");
  const Value x = batched(self, 4);
  const int64_t n = x.dim(0), c = x.dim(1);
  const Patches p = patches(call, x.dim(2), x.dim(3));
  const Value padded = pad(x, scalar(call.builder(), x.dtype(), 0),
                           {0, 0, p.padding[0], p.padding[1]}, {0, 0, p.padding[0], p.padding[1]});
  Values taps;
  for (int64_t i = 0; i < p.kernel[0]; ++i) {
    for (int64_t j = 0; j < p.kernel[1]; ++j) {
      const int64_t top = i * p.dilation[0], left = j * p.dilation[1];
      const Value tap = slice(
          padded, {0, 0, top, left},
          {n, c, top + (p.rows - 1) * p.stride[0] + 1, left + (p.columns - 1) * p.stride[1] + 1},
          {1, 1, p.stride[0], p.stride[1]});
      taps.push_back(reshape(tap, {n, c, 1, p.rows * p.columns}));
    }
  }
  const int64_t count = static_cast<int64_t>(taps.size());
  Dims dims = {n, c * count, p.rows * p.columns};
  if (self.rank() == 3) dims.erase(dims.begin());
  return {reshape(concatenate(taps, 2), dims)};
}

Values col2im(Call& call) {
  const Value self = call.tensor("self");
  const Value x = convert(batched(self, 3), compute_type(self.dtype()));
  const Dims size = spatial(call, "output_size", 2, 1);
  const Patches p = patches(call, size[0], size[1]);
  const int64_t count = p.kernel[0] * p.kernel[1];
  const int64_t n = x.dim(0), c = x.dim(1) / count;
  const Value taps = reshape(x, {n, c, count, p.rows, p.columns});
  const Value zero = scalar(call.builder(), x.dtype(), 0);
  Value sum;
  for (int64_t i = 0; i < p.kernel[0]; ++i) {
    for (int64_t j = 0; j < p.kernel[1]; ++j) {
      const int64_t tap = i * p.kernel[1] + j;
      const Value one = squeeze_dim(slice_dim(taps, 2, tap, tap + 1), 2);
      const int64_t top = i * p.dilation[0] - p.padding[0];
      const int64_t left = j * p.dilation[1] - p.padding[1];
      const int64_t bottom = size[0] - top - ((p.rows - 1) * p.stride[0] + 1);
      const int64_t right = size[1] - left - ((p.columns - 1) * p.stride[1] + 1);
      const Value placed = pad(one, zero, {0, 0, top, left}, {0, 0, bottom, right},
                               {0, 0, p.stride[0] - 1, p.stride[1] - 1});
      sum = sum ? add(sum, placed) : placed;
    }
  }
  return {self.rank() == 2 ? squeeze_dim(sum, 0) : sum};
}

// The gradient of Tensor.unfold: windows [..., count, ..., size] are added where they came from.
Values unfold_backward(Call& call) {
  const Value windows = call.tensor("grad_in");
  const Dims sizes = call.ints("input_sizes");
  if (sizes.empty()) return {reshape(windows, {})};
  const int64_t rank = static_cast<int64_t>(sizes.size());
  const int64_t dim = wrap_dim(call.integer("dim"), rank);
  const int64_t size = call.integer("size"), step = call.integer("step");
  const Value x = convert(windows, compute_type(windows.dtype()));
  const int64_t count = x.dim(dim);
  const Value zero = scalar(call.builder(), x.dtype(), 0);
  if (x.numel() == 0) return {zeros(call.builder(), x.dtype(), sizes)};
  if (step >= size) {  // windows do not overlap: put them side by side
    Dims order = range(0, rank);
    order.insert(order.begin() + dim + 1, rank);
    Dims widen(rank + 1, 0);
    widen[dim + 1] = step - size;
    const Value apart = pad(transpose(x, order), zero, Dims(rank + 1, 0), widen);
    Dims flat = sizes, high(rank, 0);
    flat[dim] = count * step;
    high[dim] = sizes[dim] - flat[dim];
    return {pad(reshape(apart, flat), zero, Dims(rank, 0), high)};
  }
  Value sum;
  for (int64_t i = 0; i < size; ++i) {
    Dims low(rank, 0), high(rank, 0), interior(rank, 0);
    low[dim] = i;
    interior[dim] = step - 1;
    high[dim] = sizes[dim] - i - ((count - 1) * step + 1);
    const Value placed =
        pad(squeeze_dim(slice_dim(x, rank, i, i + 1), rank), zero, low, high, interior);
    sum = sum ? add(sum, placed) : placed;
  }
  return {sum};
}

}  // namespace

void register_convolution(Registry& r) {
  r.add("aten::convolution_overrideable", convolution_rule,
        {.memory_format_of = {"input", "weight"}});
  r.add("aten::convolution_backward_overrideable", convolution_backward,
        {.memory_format_of = {"input", "weight"}});
  r.add("aten::conv_tbc", conv_tbc);
  r.add("aten::im2col", im2col);
  r.add("aten::col2im", col2im);
  r.add("aten::unfold_backward", unfold_backward);
}

}  // namespace torch_tpu::lowering
