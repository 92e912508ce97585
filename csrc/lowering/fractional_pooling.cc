// Max pooling over windows whose places are drawn, with gradients.
#include <numeric>

#include "lowering/expression.h"
#include "lowering/indexing.h"
#include "lowering/pooling.h"
#include "lowering/promotion.h"

namespace torch_tpu::lowering {

namespace sh = stablehlo;

namespace {

Dims leading(const Dims& dims, int64_t count) { return Dims(dims.begin(), dims.end() - count); }

Dims trailing(const Dims& dims, int64_t count) { return Dims(dims.end() - count, dims.end()); }

Dims joined(Dims dims, const Dims& more) {
  dims.insert(dims.end(), more.begin(), more.end());
  return dims;
}

// Where the windows of one dimension start, [planes, out] as s32, given a number in [0, 1) of
// `type` for each plane. Where a window starts depends on how the type rounds.
Value window_starts(Value sample, ElementType type, int64_t in, int64_t out, int64_t kernel) {
  Builder& b = sample.builder();
  const Dims dims{sample.dim(0), out};
  const Value end = sh::splat(b, TensorType{ElementType::kS32, dims}, in - kernel);
  if (out <= 1) return end;
  const auto rounded = [&](Value v) { return rounded_to(v, type); };
  const auto whole = [](Value v) { return sh::convert(v, ElementType::kS32); };
  const Value first = sh::broadcast_in_dim(sample, dims, {0});
  const Value position = sh::iota(b, TensorType{sample.dtype(), dims}, 1);
  const auto number = [&](int64_t n) {
    return rounded(constant_like(position, static_cast<double>(n)));
  };
  const Value alpha = rounded(number(in - kernel) / number(out - 1));
  const Value start =
      whole(rounded(rounded(rounded(position) + first) * alpha)) - whole(rounded(first * alpha));
  const Value last = equals(position, static_cast<double>(out - 1));
  return choose(last, end, start);
}

Values pool(Call& call, int64_t count) {
  const Value self = call.tensor("self");
  Value samples = call.tensor("random_samples");
  const Dims kernel = call.ints("kernel_size"), out = call.ints("output_size");
  const Dims in = trailing(self.dims(), count), outer = leading(self.dims(), count);
  const int64_t planes = sh::product(outer), places = sh::product(out);
  if (static_cast<int64_t>(kernel.size()) != count || static_cast<int64_t>(out.size()) != count) {
    throw Unsupported(call.op() + ": sizes that are not one for each dimension");
  }
  const Dims result = joined(outer, out);
  if (self.numel() == 0 || places == 0) {
    return {zeros(call.builder(), self.dtype(), result),
            zeros(call.builder(), ElementType::kS64, result)};
  }
  const ElementType type = samples.dtype();
  if (samples.numel() < planes * count) {
    throw Unsupported(call.op() + ": fewer random samples than planes");
  }
  // Without a batch there may be samples for one: they are taken in order.
  samples = sh::slice_dim(sh::reshape(samples, {samples.numel()}), 0, 0, planes * count);
  samples = sh::convert(sh::reshape(samples, {planes, count}), compute_type(type));

  // The place of each window's first element in its plane, then of each of its elements.
  Value base;
  Dims strides(static_cast<size_t>(count), 1);
  for (int64_t d = count - 2; d >= 0; --d) strides[d] = strides[d + 1] * in[d + 1];
  for (int64_t d = 0; d < count; ++d) {
    // With two dimensions, the first number is that of the last one.
    const int64_t number = count == 2 ? count - 1 - d : d;
    const Value sample = sh::squeeze_dim(sh::slice_dim(samples, 1, number, number + 1), 1);
    const Value start = window_starts(sample, type, in[d], out[d], kernel[d]);
    const Value part = sh::broadcast_in_dim(start * static_cast<double>(strides[d]),
                                            joined({planes}, out), {0, d + 1});
    base = base ? base + part : part;
  }
  base = sh::reshape(base, {planes, places});
  Values elements;
  for (int64_t k = 0; k < sh::product(kernel); ++k) {
    int64_t offset = 0, rest = k;
    for (int64_t d = count - 1; d >= 0; --d) {
      offset += rest % kernel[d] * strides[d];
      rest /= kernel[d];
    }
    elements.push_back(base + static_cast<double>(offset));
  }
  const Value index = sh::concatenate(elements, 1);
  const Value values = take_along(sh::reshape(self, {planes, sh::product(in)}), 1, index);
  Value best, best_index;
  for (size_t k = 0; k < elements.size(); ++k) {
    const auto from = static_cast<int64_t>(k) * places;
    const Value value = sh::slice_dim(values, 1, from, from + places);
    const Value better = best ? (value > best) | is_nan(value) : Value();
    best = best ? choose(better, value, best) : value;
    best_index = best_index ? choose(better, elements[k], best_index) : elements[k];
  }
  return {sh::reshape(best, result),
          sh::reshape(sh::convert(best_index, ElementType::kS64), result)};
}

Values pool_backward(Call& call, int64_t count) {
  const Value self = call.tensor("self");
  const Value grad = call.tensor("grad_output");
  const ElementType type = compute_type(grad.dtype());
  const Value into = zeros(call.builder(), type, self.dims());
  if (self.numel() == 0 || grad.numel() == 0) return {into};
  const int64_t planes = sh::product(leading(self.dims(), count));
  const auto flat = [&](Value v) { return sh::reshape(v, {planes, v.numel() / planes}); };
  return {sh::reshape(put_along(flat(into), 1, flat(call.tensor("indices")),
                                sh::convert(flat(grad), type), Merge::kAdd),
                      self.dims())};
}

template <Values (*rule)(Call&, int64_t), int64_t count>
Values over(Call& call) {
  return rule(call, count);
}

}  // namespace

void register_fractional_pooling(Registry& r) {
  r.add("aten::fractional_max_pool2d", over<pool, 2>);
  r.add("aten::fractional_max_pool3d", over<pool, 3>);
  r.add("aten::fractional_max_pool2d_backward", over<pool_backward, 2>);
  r.add("aten::fractional_max_pool3d_backward", over<pool_backward, 3>);
}

}  // namespace torch_tpu::lowering
