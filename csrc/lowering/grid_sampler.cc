// Sampling an image at arbitrary points (torch.nn.functional.grid_sample), and its gradients.
// A sample is a sum over taps of each axis: floor and floor + 1 when linear, one when nearest,
// four when cubic. Rows of channels are gathered at once.
#include "lowering/grid_sampler.h"

#include "lowering/promotion.h"

namespace torch_tpu::lowering {

using namespace stablehlo;

namespace {

enum Interpolation { kLinear = 0, kNearest = 1, kCubic = 2 };
enum Padding { kZeros = 0, kBorder = 1, kReflection = 2 };

// All are [batch, points] and of the computing type; `where` is a whole number.
struct Tap {
  Value where;
  Value weight;
  Value slope;  // the derivative of the weight in the grid coordinate
};

Value number(Value like, double x) { return full_like(like, x); }
Value times(Value x, double y) { return multiply(x, number(x, y)); }
Value plus(Value x, double y) { return add(x, number(x, y)); }
Value minus_from(double x, Value y) { return subtract(number(y, x), y); }

// A coordinate and its derivative in the grid coordinate.
struct Coordinate {
  Value at, slope;
};

struct Axis {
  int64_t size = 0;
  bool align_corners = false;
  int64_t padding = kZeros;
};

Coordinate unnormalize(Value grid, const Axis& axis) {
  const double size = static_cast<double>(axis.size);
  const double slope = axis.align_corners ? (size - 1) / 2 : size / 2;
  const Value at = axis.align_corners ? times(times(plus(grid, 1), 0.5), size - 1)
                                      : times(plus(times(plus(grid, 1), size), -1), 0.5);
  return {at, number(at, slope)};
}

Coordinate clip(const Coordinate& c, const Axis& axis) {
  const Value low = number(c.at, 0), high = number(c.at, static_cast<double>(axis.size - 1));
  const Value inside = and_(gt(c.at, low), lt(c.at, high));
  return {minimum(maximum(c.at, low), high), select(inside, c.slope, low)};
}

Coordinate reflect(const Coordinate& c, const Axis& axis) {
  const double low = axis.align_corners ? 0 : -0.5;
  const double span =
      axis.align_corners ? static_cast<double>(axis.size - 1) : static_cast<double>(axis.size);
  if (span == 0) return {number(c.at, 0), number(c.at, 0)};
  const Value shifted = plus(c.at, -low);
  const Value distance = abs(shifted);
  const Value flips = floor(times(distance, 1 / span));
  const Value extra = remainder(distance, number(distance, span));
  const Value even = eq(remainder(flips, number(flips, 2)), number(flips, 0));
  const Value at = select(even, plus(extra, low), minus_from(span + low, extra));
  const Value negative = lt(shifted, number(shifted, 0));
  // An odd number of turns, the one at zero included, runs backwards.
  const Value backwards = xor_(negative, not_(even));
  return {at, select(backwards, negate(c.slope), c.slope)};
}

Coordinate pad_coordinate(const Coordinate& c, const Axis& axis) {
  if (axis.padding == kBorder) return clip(c, axis);
  if (axis.padding == kReflection) return clip(reflect(c, axis), axis);
  return c;
}

// Keys' cubic convolution with A = -0.75, at distance `x` (inner: below 1; outer: 1 to 2).
constexpr double kA = -0.75;
Value cubic_inner(Value x) {
  return plus(multiply(multiply(plus(times(x, kA + 2), -(kA + 3)), x), x), 1);
}
Value cubic_inner_slope(Value x) {
  return multiply(plus(times(x, 3 * (kA + 2)), -2 * (kA + 3)), x);
}
Value cubic_outer(Value x) {
  return plus(multiply(plus(multiply(plus(times(x, kA), -5 * kA), x), 8 * kA), x), -4 * kA);
}
Value cubic_outer_slope(Value x) {
  return plus(multiply(plus(times(x, 3 * kA), -10 * kA), x), 8 * kA);
}

std::vector<Tap> taps(Value grid, const Axis& axis, int64_t interpolation) {
  Coordinate c = unnormalize(grid, axis);
  if (interpolation == kCubic) {
    const Value base = floor(c.at);
    const Value t = subtract(c.at, base);
    const Value u = minus_from(1, t);
    const std::array<Value, 4> weights = {cubic_outer(plus(t, 1)), cubic_inner(t), cubic_inner(u),
                                          cubic_outer(plus(u, 1))};
    const std::array<Value, 4> slopes = {cubic_outer_slope(plus(t, 1)), cubic_inner_slope(t),
                                         negate(cubic_inner_slope(u)),
                                         negate(cubic_outer_slope(plus(u, 1)))};
    std::vector<Tap> all;
    for (int k = 0; k < 4; ++k) {
      const Value where = plus(base, k - 1);
      all.push_back({pad_coordinate({where, number(where, 1)}, axis).at, weights[k],
                     multiply(slopes[k], c.slope)});
    }
    return all;
  }
  c = pad_coordinate(c, axis);
  if (interpolation == kNearest) {
    return {{round_nearest_even(c.at), number(c.at, 1), number(c.at, 0)}};
  }
  const Value base = floor(c.at);
  const Value t = subtract(c.at, base);
  return {{base, minus_from(1, t), negate(c.slope)}, {plus(base, 1), t, c.slope}};
}

// One tap of every axis.
struct Corner {
  Value valid;           // bool[batch, points]: inside the image
  Value index;           // s32[batch, points]: flat position in the image
  std::vector<Tap> tap;  // by axis
};

struct Sampler {
  int64_t axes = 0, batch = 0, channels = 0, points = 0, pixels = 0;
  Dims image, output;  // spatial sizes
  std::vector<Corner> corners;
};

Sampler sampler(const Call& call, int64_t count, ElementType type) {
  const Value input = call.tensor("input"), grid = convert(call.tensor("grid"), type);
  if (!is_float(input.dtype()) || !is_float(call.tensor("grid").dtype())) {
    throw Unsupported("grid_sampler: expected floating point input and grid");
  }
  Sampler s;
  s.axes = count;
  s.batch = input.dim(0);
  s.channels = input.dim(1);
  s.image = Dims(input.dims().begin() + 2, input.dims().end());
  s.output = Dims(grid.dims().begin() + 1, grid.dims().end() - 1);
  s.pixels = product(s.image);
  s.points = product(s.output);
  std::vector<std::vector<Tap>> by_axis;
  for (int64_t i = 0; i < count; ++i) {
    const Axis axis{s.image[i], call.boolean("align_corners"), call.integer("padding_mode")};
    // The grid names the last dimension first.
    const Value along = slice_dim(grid, count + 1, count - 1 - i, count - i);
    by_axis.push_back(
        taps(reshape(along, {s.batch, s.points}), axis, call.integer("interpolation_mode")));
  }
  const int64_t per_axis = static_cast<int64_t>(by_axis[0].size());
  int64_t total = 1;
  for (int64_t i = 0; i < count; ++i) total *= per_axis;
  for (int64_t n = 0; n < total; ++n) {
    Corner corner;
    int64_t rest = n;
    for (int64_t i = 0; i < count; ++i) {
      const Tap& tap = by_axis[i][rest % per_axis];
      rest /= per_axis;
      corner.tap.push_back(tap);
      const Value top = number(tap.where, static_cast<double>(s.image[i] - 1));
      const Value bottom = number(tap.where, 0);
      const Value inside = and_(ge(tap.where, bottom), le(tap.where, top));
      corner.valid = corner.valid ? and_(corner.valid, inside) : inside;
      const Value at = convert(select(inside, tap.where, bottom), ElementType::kS32);
      corner.index = corner.index ? add(multiply(corner.index, full_like(at, s.image[i])), at) : at;
    }
    s.corners.push_back(corner);
  }
  return s;
}

// The weight of a corner, or its derivative along one axis.
Value corner_weight(const Corner& corner, int64_t slope_axis = -1) {
  Value weight;
  for (size_t i = 0; i < corner.tap.size(); ++i) {
    const bool slope = static_cast<int64_t>(i) == slope_axis;
    const Value factor = slope ? corner.tap[i].slope : corner.tap[i].weight;
    weight = weight ? multiply(weight, factor) : factor;
  }
  return select(corner.valid, weight, number(weight, 0));
}

// [batch, channels, sizes...] to [batch, positions, channels].
Value channels_last(Value x) {
  const int64_t positions = product(std::span(x.dims()).subspan(2));
  return transpose(reshape(x, {x.dim(0), x.dim(1), positions}), {0, 2, 1});
}

// [batch, positions, channels] to [batch, channels, sizes...].
Value channels_second(Value x, const Dims& sizes) {
  Dims dims = {x.dim(0), x.dim(2)};
  dims.insert(dims.end(), sizes.begin(), sizes.end());
  return reshape(transpose(x, {0, 2, 1}), dims);
}

// (batch, position) pairs: s32[batch, points, 2].
Value with_batch(Value index) {
  const TensorType type{ElementType::kS32, {index.dim(0), index.dim(1), 1}};
  return concatenate({iota(index.builder(), type, 0), reshape(index, type.dims)}, 2);
}

// The channels at a corner: [batch, points, channels], zero outside the image.
Value look(const Sampler& s, Value image, const Corner& corner) {
  const GatherDims dims{.offset_dims = {2},
                        .collapsed_slice_dims = {0, 1},
                        .start_index_map = {0, 1},
                        .index_vector_dim = 2};
  const Value seen = gather(image, with_batch(corner.index), dims, {1, 1, s.channels});
  const Value valid = broadcast_in_dim(corner.valid, seen.dims(), {0, 1});
  return select(valid, seen, number(seen, 0));
}

Values sample(Call& call, int64_t count) {
  const Value input = call.tensor("input");
  const ElementType type = compute_type(input.dtype());
  const Sampler s = sampler(call, count, type);
  if (s.points == 0 || input.numel() == 0) {
    Dims dims{input.dim(0), input.dim(1)};
    dims.insert(dims.end(), s.output.begin(), s.output.end());
    return {splat(call.builder(), {input.dtype(), dims}, 0)};
  }
  const Value image = channels_last(convert(input, type));
  Value sum;
  for (const Corner& corner : s.corners) {
    const Value seen = look(s, image, corner);
    const Value part = multiply(seen, broadcast_in_dim(corner_weight(corner), seen.dims(), {0, 1}));
    sum = sum ? add(sum, part) : part;
  }
  return {convert(channels_second(sum, s.output), input.dtype())};
}

Value input_gradient(const Sampler& s, Value grad) {
  Values updates, indices;
  for (const Corner& corner : s.corners) {
    updates.push_back(multiply(grad, broadcast_in_dim(corner_weight(corner), grad.dims(), {0, 1})));
    indices.push_back(corner.index);
  }
  const Value zero = splat(grad.builder(), {grad.dtype(), {s.batch, s.pixels, s.channels}}, 0.0);
  const ScatterDims dims{.update_window_dims = {2},
                         .inserted_window_dims = {0, 1},
                         .scatter_dims_to_operand_dims = {0, 1},
                         .index_vector_dim = 2};
  return scatter(zero, with_batch(concatenate(indices, 1)), concatenate(updates, 1), dims,
                 [](const Values& v) -> Values { return {add(v[0], v[1])}; });
}

Value grid_gradient(const Sampler& s, Value image, Value grad) {
  Values by_axis(s.axes);
  for (const Corner& corner : s.corners) {
    const Value change = reduce_sum(multiply(look(s, image, corner), grad), {2});
    for (int64_t i = 0; i < s.axes; ++i) {
      const Value part = multiply(change, corner_weight(corner, i));
      by_axis[i] = by_axis[i] ? add(by_axis[i], part) : part;
    }
  }
  Dims dims = {s.batch};
  dims.insert(dims.end(), s.output.begin(), s.output.end());
  dims.push_back(1);
  Values parts;
  for (int64_t i = s.axes - 1; i >= 0; --i) parts.push_back(reshape(by_axis[i], dims));
  return concatenate(parts, s.axes + 1);
}

Values sample_backward(Call& call, int64_t count) {
  const Value input = call.tensor("input");
  const ElementType type = compute_type(input.dtype());
  const Sampler s = sampler(call, count, type);
  const Value grad = channels_last(convert(call.tensor("grad_output"), type));
  const std::vector<bool> wanted = call.bools("output_mask");
  Values grads(2);
  if (grad.numel() == 0 || input.numel() == 0) {
    const Value grid = call.tensor("grid");
    if (wanted[0]) grads[0] = splat(call.builder(), input.type(), 0);
    if (wanted[1]) grads[1] = splat(call.builder(), grid.type(), 0);
    return grads;
  }
  if (wanted[0]) {
    grads[0] = convert(channels_second(input_gradient(s, grad), s.image), input.dtype());
  }
  if (wanted[1]) {
    const Value image = channels_last(convert(input, type));
    grads[1] = convert(grid_gradient(s, image, grad), call.tensor("grid").dtype());
  }
  return grads;
}

}  // namespace

void register_grid_sampler(Registry& r) {
  for (const int64_t n : {2, 3}) {
    const std::string name = "aten::grid_sampler_" + std::to_string(n) + "d";
    r.add(name, [n](Call& call) { return sample(call, n); });
    r.add(name + "_backward", [n](Call& call) { return sample_backward(call, n); });
  }
}

}  // namespace torch_tpu::lowering
