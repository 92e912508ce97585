// Resizing images and padding them with what they hold: every axis on its own, by a pattern which
// is known while lowering.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "lowering/along_dimension.h"
#include "lowering/byte_resampling.h"
#include "lowering/families.h"
#include "lowering/grid_sampler.h"
#include "lowering/promotion.h"

namespace torch_tpu::lowering {

using namespace stablehlo;

namespace {

// One spatial dimension being resized.
struct Axis {
  int64_t dim = 0, in = 0, out = 0;
  std::optional<double> scale;  // as the user gave it: out / in
  bool align_corners = false;
};

std::optional<double> user_scale(const Call& call, int64_t axis, int64_t count) {
  static constexpr std::array<const char*, 3> kNames = {"scales_d", "scales_h", "scales_w"};
  std::string_view name = kNames[3 - count + axis];
  if (count == 1 && !call.has(name)) name = "scales";
  if (!call.has(name)) return std::nullopt;
  const std::optional<double> scale = call.known_number(name);
  if (!scale) throw Unsupported("upsample: scales must be known while lowering");
  return *scale > 0 ? scale : std::nullopt;
}

std::vector<Axis> resized_axes(const Call& call, const Dims& input) {
  const Dims output = call.ints("output_size");
  const int64_t count = static_cast<int64_t>(output.size());
  std::vector<Axis> axes;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t dim = static_cast<int64_t>(input.size()) - count + i;
    axes.push_back(
        {dim, input[dim], output[i], user_scale(call, i, count), call.boolean("align_corners")});
  }
  return axes;
}

// --- Nearest -------------------------------------------------------------------------------------

// Which pixel is nearest depends on the rounding of its position. PyTorch's forward computes that
// in T: double for float64 tensors, else float (with one rounding for the exact kind's product and
// sum), its backward in float always.
template <typename T>
Dims nearest_indices(const Axis& a, bool exact, bool backward) {
  Dims indices;
  const T step =
      a.scale ? static_cast<T>(1.0 / *a.scale) : static_cast<T>(a.in) / static_cast<T>(a.out);
  for (int64_t o = 0; o < a.out; ++o) {
    double at = step * static_cast<T>(o);
    if (exact && backward) {
      at = (static_cast<double>(o) + 0.5) * static_cast<double>(step);
    } else if (exact) {
      at = std::fma(step, static_cast<T>(o) + T(0.5), T(-0.5));
      at = std::max(at, 0.0) + 0.5;
    } else if (a.out == 2 * a.in) {
      at = static_cast<double>(o / 2);
    } else if (a.out == a.in) {
      at = static_cast<double>(o);
    }
    const auto i = static_cast<int64_t>(std::floor(static_cast<float>(at)));
    indices.push_back(std::min(i, a.in - 1));
  }
  return indices;
}

// The words of PyTorch's own check, which nearest 2d needs: its meta kernel refuses an empty batch.
void require_sizes(const Dims& input, const Dims& output) {
  const bool fits = input.size() == 4 && output.size() == 2;
  if (fits && input[2] > 0 && input[3] > 0 && output[0] > 0 && output[1] > 0) return;
  throw InvalidArgument("Input and output sizes should be greater than 0, but got input " +
                        to_string(input) + " output " + to_string(output));
}

Values nearest(Call& call, bool exact) {
  Value x = call.tensor("self");
  if (call.num_outputs() == 0 && x.rank() == 4) require_sizes(x.dims(), call.ints("output_size"));
  for (const Axis& a : resized_axes(call, x.dims())) {
    const bool wide = x.dtype() == ElementType::kF64;
    x = take_along(
        x, a.dim,
        wide ? nearest_indices<double>(a, exact, false) : nearest_indices<float>(a, exact, false));
  }
  return {x};
}

Values nearest_backward(Call& call, bool exact) {
  const Value grad = call.tensor("grad_output");
  Value x = convert(grad, compute_type(grad.dtype()));
  for (const Axis& a : resized_axes(call, call.ints("input_size"))) {
    x = spread_along(x, a.dim, nearest_indices<float>(a, exact, true), a.in);
  }
  return {x};
}

// --- Linear, cubic and antialiased: products with small matrices ---------------------------------

// T is the type PyTorch computes positions in: float, or double for float64 tensors.
template <typename T>
T step_of(const Axis& a) {
  if (a.align_corners) {
    return a.out > 1 ? static_cast<T>(a.in - 1) / static_cast<T>(a.out - 1) : T(0);
  }
  return a.scale ? static_cast<T>(1.0 / *a.scale) : static_cast<T>(a.in) / static_cast<T>(a.out);
}

template <typename T>
T source_position(const Axis& a, int64_t o, bool cubic) {
  const T step = step_of<T>(a);
  if (a.align_corners) return step * static_cast<T>(o);
  const T at = step * (static_cast<T>(o) + T(0.5)) - T(0.5);
  return !cubic && at < 0 ? T(0) : at;
}

// The pixel at or before a position, and how far past it the position is.
template <typename T>
std::pair<int64_t, T> split(const Axis& a, T at) {
  const int64_t i = std::min(static_cast<int64_t>(std::floor(at)), a.in - 1);
  return {i, std::clamp(at - static_cast<T>(i), T(0), T(1))};
}

Taps blank(const Axis& a, int64_t count) {
  return {a.in, std::vector<Dims>(count, Dims(a.out)),
          std::vector<std::vector<double>>(count, std::vector<double>(a.out))};
}

template <typename T>
Taps linear_taps(const Axis& a) {
  Taps taps = blank(a, 2);
  for (int64_t o = 0; o < a.out; ++o) {
    auto [i, t] = a.in == a.out ? std::pair{o, T(0)} : split(a, source_position<T>(a, o, false));
    taps.indices[0][o] = i;
    taps.indices[1][o] = std::min(i + 1, a.in - 1);
    taps.weights[0][o] = T(1) - t;
    taps.weights[1][o] = t;
  }
  return taps;
}

// Cubic convolution: the weight of a pixel at distance `x`.
template <typename T>
T cubic(T x, T a) {
  x = std::abs(x);
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a;
  return 0;
}

template <typename T>
Taps cubic_taps(const Axis& a) {
  Taps taps = blank(a, 4);
  for (int64_t o = 0; o < a.out; ++o) {
    const auto [i, t] = split(a, source_position<T>(a, o, true));
    for (int64_t k = 0; k < 4; ++k) {
      taps.indices[k][o] = std::clamp<int64_t>(i + k - 1, 0, a.in - 1);
      taps.weights[k][o] = cubic<T>(t - static_cast<T>(k - 1), T(-0.75));
    }
  }
  return taps;
}

// A filter of half width `reach` pixels, stretched when the image shrinks.
struct Filter {
  double reach;
  double (*weight)(double);
};

double triangle(double x) { return std::max(0.0, 1.0 - std::abs(x)); }
double smooth_cubic(double x) { return cubic<double>(x, -0.5); }
double sinc(double x) {
  return x == 0 ? 1.0 : std::sin(std::numbers::pi * x) / (std::numbers::pi * x);
}
double lanczos(double x) { return std::abs(x) < 3 ? sinc(x) * sinc(x / 3) : 0.0; }

template <typename T>
Taps filter_taps(const Axis& a, const Filter& filter) {
  const T step = step_of<T>(a);
  const T stretch = std::max(step, T(1));
  const T support = static_cast<T>(filter.reach) * stretch;
  const int64_t most = static_cast<int64_t>(std::ceil(support)) * 2 + 1;
  Taps taps = blank(a, most);
  for (int64_t o = 0; o < a.out; ++o) {
    const T center = step * (static_cast<T>(o) + T(0.5));
    const int64_t from = std::max<int64_t>(static_cast<int64_t>(center - support + T(0.5)), 0);
    const int64_t to = std::min<int64_t>(static_cast<int64_t>(center + support + T(0.5)), a.in);
    const int64_t count = std::clamp<int64_t>(to - from, 0, most);
    double total = 0;
    for (int64_t k = 0; k < count; ++k) {
      const T distance = (static_cast<T>(k + from) - center + T(0.5)) / stretch;
      taps.indices[k][o] = from + k;
      total += taps.weights[k][o] = filter.weight(distance);
    }
    for (int64_t k = 0; k < count && total != 0; ++k) taps.weights[k][o] /= total;
  }
  return taps;
}

enum class Kind { kLinear, kCubic, kLinearSmooth, kCubicSmooth, kLanczosSmooth };

template <typename T>
Taps taps_of(Kind kind, const Axis& a) {
  switch (kind) {
    case Kind::kLinear:
      return linear_taps<T>(a);
    case Kind::kCubic:
      return cubic_taps<T>(a);
    case Kind::kLinearSmooth:
      return filter_taps<T>(a, {1, triangle});
    case Kind::kCubicSmooth:
      return filter_taps<T>(a, {2, smooth_cubic});
    case Kind::kLanczosSmooth:
      return filter_taps<T>(a, {3, lanczos});
  }
  throw Unsupported("upsample: an unknown kind of interpolation");
}

Taps taps_for(Kind kind, const Axis& a, ElementType type) {
  return type == ElementType::kF64 ? taps_of<double>(kind, a) : taps_of<float>(kind, a);
}

bool changes_nothing(const Taps& taps) {
  if (taps.inputs != taps.outputs()) return false;
  for (int64_t o = 0; o < taps.outputs(); ++o) {
    double own = 0;
    for (size_t k = 0; k < taps.indices.size(); ++k) {
      if (taps.indices[k][o] == o) {
        own += taps.weights[k][o];
      } else if (taps.weights[k][o] != 0) {
        return false;
      }
    }
    if (own != 1) return false;
  }
  return true;
}

void require_float(Value x) {
  if (!is_float(x.dtype())) throw Unsupported("upsample: interpolates floating point only");
}

// Bytes, which PyTorch interpolates in two dimensions.
Values interpolate_bytes(Call& call, Kind kind) {
  Value x = call.tensor("self");
  const std::vector<Axis> axes = resized_axes(call, x.dims());
  for (auto a = axes.rbegin(); a != axes.rend(); ++a) {
    // Whatever the scale says, an axis that keeps its size stays as it is.
    if (a->in != a->out) x = mix_bytes_along(x, a->dim, taps_of<double>(kind, *a));
  }
  return {x};
}

Values interpolate(Call& call, Kind kind) {
  const Value self = call.tensor("self");
  if (self.dtype() == ElementType::kU8 && self.rank() == 4) return interpolate_bytes(call, kind);
  require_float(self);
  Value x = convert(self, compute_type(self.dtype()));
  const std::vector<Axis> axes = resized_axes(call, x.dims());
  for (auto a = axes.rbegin(); a != axes.rend(); ++a) {
    const Taps taps = taps_for(kind, *a, x.dtype());
    if (!changes_nothing(taps)) x = mix_along(x, a->dim, taps);
  }
  return {x};
}

Values interpolate_backward(Call& call, Kind kind) {
  const Value grad = call.tensor("grad_output");
  require_float(grad);
  Value x = convert(grad, compute_type(grad.dtype()));
  for (const Axis& a : resized_axes(call, call.ints("input_size"))) {
    const Taps taps = taps_for(kind, a, x.dtype());
    if (!changes_nothing(taps)) x = mix_back_along(x, a.dim, taps);
  }
  return {x};
}

// --- Padding -------------------------------------------------------------------------------------

int64_t reflected(int64_t i, int64_t size) {
  if (i < 0) return -i;
  return i < size ? i : 2 * (size - 1) - i;
}

int64_t replicated(int64_t i, int64_t size) { return std::clamp<int64_t>(i, 0, size - 1); }

using Extend = int64_t (*)(int64_t i, int64_t size);

// Where each element of the padded dimension comes from. `padding` names the last dimension first.
Dims padded_indices(const Dims& padding, int64_t from_end, int64_t size, Extend extend) {
  const int64_t low = padding[2 * from_end], high = padding[2 * from_end + 1];
  Dims indices;
  for (int64_t o = 0; o < low + size + high; ++o) indices.push_back(extend(o - low, size));
  return indices;
}

Values pad_with_own(Call& call, Extend extend) {
  Value x = call.tensor("self");
  const Dims padding = call.ints("padding");
  for (int64_t i = 0; i < static_cast<int64_t>(padding.size() / 2); ++i) {
    const int64_t dim = x.rank() - 1 - i;
    x = take_along(x, dim, padded_indices(padding, i, x.dim(dim), extend));
  }
  return {x};
}

Values pad_with_own_backward(Call& call, Extend extend) {
  const Value grad = call.tensor("grad_output"), self = call.tensor("self");
  Value x = convert(grad, compute_type(grad.dtype()));
  const Dims padding = call.ints("padding");
  for (int64_t i = 0; i < static_cast<int64_t>(padding.size() / 2); ++i) {
    const int64_t dim = x.rank() - 1 - i, size = self.dim(dim);
    x = spread_along(x, dim, padded_indices(padding, i, size, extend), size);
  }
  return {x};
}

Values constant_pad(Call& call) {
  const Value self = call.tensor("self");
  const Dims padding = call.ints("pad");
  const int64_t rank = self.rank(), count = static_cast<int64_t>(padding.size());
  if (count % 2 != 0) {
    throw InvalidArgument("Length of pad must be even but instead it equals " +
                          std::to_string(count));
  }
  if (count > 2 * rank) {
    throw InvalidArgument(
        "Length of pad should be no more than twice the number of dimensions of the input. Pad "
        "length is " +
        std::to_string(count) + " while the input has " + std::to_string(rank) + " dimensions.");
  }
  Dims low(rank, 0), high(rank, 0);
  for (int64_t i = 0; i < count / 2; ++i) {
    const int64_t dim = rank - 1 - i, before = padding[2 * i], after = padding[2 * i + 1];
    if (self.dim(dim) + before + after < 0) {
      throw InvalidArgument("The input size " + std::to_string(self.dim(dim)) +
                            ", plus negative padding " + std::to_string(before) + " and " +
                            std::to_string(after) +
                            ", resulted in a negative output size, which is invalid. Check "
                            "dimension " +
                            std::to_string(dim) + " of your input.");
    }
    low[dim] = before;
    high[dim] = after;
  }
  return {pad(self, call.number_or("value", 0, self.dtype()), low, high)};
}

// --- Shuffles ------------------------------------------------------------------------------------

// [..., c r r, h, w] -> [..., c, h r, w r]
Values pixel_shuffle(Call& call) {
  const Value x = call.tensor("self");
  const int64_t r = call.integer("upscale_factor");
  const int64_t n = x.rank() - 3, c = x.dim(n) / (r * r), h = x.dim(n + 1), w = x.dim(n + 2);
  const int64_t leading = product(std::span(x.dims()).first(n));
  Dims dims(x.dims().begin(), x.dims().begin() + n);
  dims.insert(dims.end(), {c, h * r, w * r});
  const Value split = reshape(x, {leading, c, r, r, h, w});
  return {reshape(transpose(split, {0, 1, 4, 2, 5, 3}), dims)};
}

Values pixel_unshuffle(Call& call) {
  const Value x = call.tensor("self");
  const int64_t r = call.integer("downscale_factor");
  const int64_t n = x.rank() - 3, c = x.dim(n), h = x.dim(n + 1) / r, w = x.dim(n + 2) / r;
  const int64_t leading = product(std::span(x.dims()).first(n));
  Dims dims(x.dims().begin(), x.dims().begin() + n);
  dims.insert(dims.end(), {c * r * r, h, w});
  const Value split = reshape(x, {leading, c, h, r, w, r});
  return {reshape(transpose(split, {0, 1, 3, 5, 2, 4}), dims)};
}

Values channel_shuffle(Call& call) {
  const Value x = call.tensor("self");
  const int64_t groups = call.integer("groups");
  const int64_t rest = product(std::span(x.dims()).subspan(2));
  const Value split = reshape(x, {x.dim(0), groups, x.dim(1) / groups, rest});
  return {reshape(transpose(split, {0, 2, 1, 3}), x.dims())};
}

struct Interpolation {
  const char* name;
  Kind kind;
};

constexpr std::array<Interpolation, 7> kInterpolations = {{
    {"aten::upsample_linear1d", Kind::kLinear},
    {"aten::upsample_bilinear2d", Kind::kLinear},
    {"aten::upsample_trilinear3d", Kind::kLinear},
    {"aten::upsample_bicubic2d", Kind::kCubic},
    {"aten::_upsample_bilinear2d_aa", Kind::kLinearSmooth},
    {"aten::_upsample_bicubic2d_aa", Kind::kCubicSmooth},
    {"aten::_upsample_lanczos2d_aa", Kind::kLanczosSmooth},
}};

}  // namespace

void register_resampling(Registry& r) {
  const RuleOptions options{.known_numbers = {"scales", "scales_d", "scales_h", "scales_w"}};
  for (const auto& [op, kind] : kInterpolations) {
    const std::string name = op;
    r.add(name, [kind = kind](Call& call) { return interpolate(call, kind); }, options);
    r.add(
        name + "_backward", [kind = kind](Call& call) { return interpolate_backward(call, kind); },
        options);
  }
  for (const char* d : {"1d", "2d", "3d"}) {
    for (const bool exact : {false, true}) {
      const std::string name =
          std::string(exact ? "aten::_upsample_nearest_exact" : "aten::upsample_nearest") + d;
      const Rule rule = [exact](Call& call) { return nearest(call, exact); };
      if (std::string_view(d) == "2d") {
        r.add(name, rule,
              {.known_numbers = options.known_numbers,
               .own_types = true,
               .memory_format_of = {"self"}});
        r.add(name + ".out", rule, options);
      } else if (std::string_view(d) == "1d") {
        // Its meta kernel does not take an empty batch.
        r.add(name, rule, {.known_numbers = options.known_numbers, .own_types = true});
        r.add(name + ".out", rule, options);
      } else {
        r.add(name, rule, options);
      }
      r.add(
          name + "_backward", [exact](Call& call) { return nearest_backward(call, exact); },
          options);
    }
    for (const auto& [mode, extend] :
         {std::pair<const char*, Extend>{"reflection", reflected}, {"replication", replicated}}) {
      const std::string name = std::string("aten::") + mode + "_pad" + d;
      r.add(name, [extend = extend](Call& call) { return pad_with_own(call, extend); });
      r.add(name + "_backward",
            [extend = extend](Call& call) { return pad_with_own_backward(call, extend); });
    }
  }
  r.add("aten::constant_pad_nd", constant_pad);
  r.add("aten::pixel_shuffle", pixel_shuffle);
  r.add("aten::pixel_unshuffle", pixel_unshuffle);
  r.add("aten::channel_shuffle", channel_shuffle);
  register_grid_sampler(r);
}

}  // namespace torch_tpu::lowering
