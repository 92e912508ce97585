// Max, average and adaptive pooling over the last dimensions, with gradients. Windows are taken
// one dimension after the other, each as a few shifted slices, which compilers fuse; a window
// position by position would cost the product of its sizes.
#include "lowering/pooling.h"

#include "lowering/along_dimension.h"
#include "lowering/families.h"
#include "lowering/promotion.h"

namespace torch_tpu::lowering {

using namespace stablehlo;

namespace {

constexpr int64_t kMaxUnrolled = 64;

// One dimension of a pooling window.
struct Axis {
  int64_t dim = 0, in = 0, out = 0;
  int64_t kernel = 1, stride = 1, padding = 0, dilation = 1;

  int64_t position(int64_t o, int64_t k) const { return o * stride - padding + k * dilation; }
  Dims positions(int64_t k) const {
    Dims all;
    for (int64_t o = 0; o < out; ++o) all.push_back(position(o, k));
    return all;
  }
  // The first element inside the input which each window sees.
  Dims firsts() const {
    Dims all;
    for (int64_t o = 0; o < out; ++o) {
      int64_t k = 0;
      while (k + 1 < kernel && position(o, k) < 0) ++k;
      all.push_back(position(o, k));
    }
    return all;
  }
  // Windows that stand side by side and cover the input.
  bool tiles() const {
    return kernel == stride && padding == 0 && dilation == 1 && out * kernel == in;
  }
};

using Axes = std::vector<Axis>;

Dims per_axis(const Call& call, std::string_view name, int64_t count, const Dims& otherwise) {
  Dims dims = call.ints(name);
  if (dims.empty()) return otherwise;
  if (dims.size() == 1) dims.resize(count, dims[0]);
  return dims;
}

int64_t floor_divide(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }

Axes axes(const Call& call, const Dims& input, int64_t count) {
  const Dims kernel = per_axis(call, "kernel_size", count, {});
  const Dims stride = per_axis(call, "stride", count, kernel);
  const Dims padding = per_axis(call, "padding", count, Dims(count, 0));
  const Dims dilation = per_axis(call, "dilation", count, Dims(count, 1));
  const bool ceil_mode = call.boolean("ceil_mode");
  const int64_t first = static_cast<int64_t>(input.size()) - count;
  Axes all;
  for (int64_t i = 0; i < count; ++i) {
    Axis a{first + i, input[first + i], 0, kernel[i], stride[i], padding[i], dilation[i]};
    const int64_t room = a.in + 2 * a.padding - a.dilation * (a.kernel - 1) - 1;
    a.out = floor_divide(room + (ceil_mode ? a.stride - 1 : 0), a.stride) + 1;
    // The last window must begin inside the input or its left padding.
    if (ceil_mode && (a.out - 1) * a.stride >= a.in + a.padding) --a.out;
    all.push_back(a);
  }
  return all;
}

int64_t taps(const Axes& all) {
  int64_t count = 1;
  for (const Axis& a : all) count *= a.kernel;
  return count;
}

// The input with padding around it, such that tap() finds every window.
Value padded(Value x, const Axis& a, Value padding_value) {
  const int64_t reach = (a.out - 1) * a.stride + (a.kernel - 1) * a.dilation + 1;
  return pad_along(x, a.dim, padding_value, a.padding, reach - a.in - a.padding);
}

// Element k of every window.
Value tap(Value padded, const Axis& a, int64_t k) {
  const int64_t start = k * a.dilation;
  return slice_dim(padded, a.dim, start, start + (a.out - 1) * a.stride + 1, a.stride);
}

// The transpose of tap(padded(x), k): zeros but where element k of a window is.
Value untap(Value x, const Axis& a, int64_t k) {
  const int64_t low = k * a.dilation - a.padding;
  const int64_t high = a.in - low - ((a.out - 1) * a.stride + 1);
  return pad_along(x, a.dim, scalar(x.builder(), x.dtype(), 0), low, high, a.stride - 1);
}

// --- Averages ------------------------------------------------------------------------------------

Value add_region(const Values& v) { return add(v[0], v[1]); }

Value window_sums(Value x, const Axis& a) {
  if (a.tiles()) {
    Dims starts, lengths(a.out, a.kernel);
    for (int64_t o = 0; o < a.out; ++o) starts.push_back(o * a.kernel);
    return sum_ranges(x, a.dim, starts, lengths);
  }
  const Value zero = scalar(x.builder(), x.dtype(), 0);
  const Value wide = padded(x, a, zero);
  if (a.kernel > kMaxUnrolled) {
    Window w{.dimensions = Dims(x.rank(), 1), .strides = Dims(x.rank(), 1)};
    w.dimensions[a.dim] = a.kernel;
    w.strides[a.dim] = a.stride;
    return reduce_window({wide}, {zero}, w,
                         [](const Values& v) -> Values { return {add_region(v)}; })[0];
  }
  Value sum = tap(wide, a, 0);
  for (int64_t k = 1; k < a.kernel; ++k) sum = add(sum, tap(wide, a, k));
  return sum;
}

Value window_spread(Value grad, const Axis& a) {
  if (a.tiles()) {
    Dims indices;
    for (int64_t i = 0; i < a.in; ++i) indices.push_back(i / a.kernel);
    return take_along(grad, a.dim, indices);
  }
  if (a.kernel > kMaxUnrolled) {
    // Which windows see an element is again a range of them.
    Dims starts, lengths;
    for (int64_t i = 0; i < a.in; ++i) {
      int64_t from = 0, to = a.out;
      while (from < a.out && a.position(from, a.kernel - 1) < i) ++from;
      while (to > from && a.position(to - 1, 0) > i) --to;
      starts.push_back(from);
      lengths.push_back(to - from);
    }
    return sum_ranges(grad, a.dim, starts, lengths);
  }
  Value sum = untap(grad, a, 0);
  for (int64_t k = 1; k < a.kernel; ++k) sum = add(sum, untap(grad, a, k));
  return sum;
}

// How many elements each window averages over, as a value that broadcasts to `type`.
Value divisor(const Call& call, const Axes& all, const TensorType& type) {
  Builder& b = call.builder();
  if (call.has("divisor_override")) return splat(b, type, call.integer("divisor_override"));
  const bool count_padding = call.boolean("count_include_pad", true);
  Value count;
  for (const Axis& a : all) {
    Dims sizes;
    for (int64_t o = 0; o < a.out; ++o) {
      const int64_t start = o * a.stride - a.padding;
      const int64_t end = std::min(start + a.kernel, a.in + a.padding);
      sizes.push_back(count_padding ? end - start
                                    : std::min(end, a.in) - std::max<int64_t>(start, 0));
    }
    const Value line = vary_along(b, type, a.dim, sizes);
    count = count ? multiply(count, line) : line;
  }
  return count;
}

Values avg_pool(Call& call, int64_t count) {
  const Value self = call.tensor("self");
  Value x = convert(self, compute_type(self.dtype()));
  const Axes all = axes(call, x.dims(), count);
  for (auto a = all.rbegin(); a != all.rend(); ++a) x = window_sums(x, *a);
  return {divide(x, divisor(call, all, x.type()))};
}

Values avg_pool_backward(Call& call, int64_t count) {
  const Value grad = call.tensor("grad_output");
  Value x = convert(grad, compute_type(grad.dtype()));
  const Axes all = axes(call, call.tensor("self").dims(), count);
  x = divide(x, divisor(call, all, x.type()));
  for (const Axis& a : all) x = window_spread(x, a);
  return {x};
}

// --- Adaptive windows: output o of n sees elements [o * in / n, ceil((o + 1) * in / n)) ----------

struct Ranges {
  int64_t dim = 0, in = 0;
  Dims starts, lengths;
};

Ranges adaptive(int64_t dim, int64_t in, int64_t out) {
  Ranges r{dim, in, {}, {}};
  for (int64_t o = 0; o < out; ++o) {
    r.starts.push_back(o * in / out);
    r.lengths.push_back(((o + 1) * in + out - 1) / out - r.starts.back());
  }
  return r;
}

// For each element, the outputs that see it.
Ranges transposed(const Ranges& r) {
  const int64_t out = static_cast<int64_t>(r.starts.size());
  Ranges t{r.dim, out, {}, {}};
  for (int64_t i = 0; i < r.in; ++i) {
    int64_t from = 0, to = out;
    while (from < out && r.starts[from] + r.lengths[from] <= i) ++from;
    while (to > from && r.starts[to - 1] > i) --to;
    t.starts.push_back(from);
    t.lengths.push_back(to - from);
  }
  return t;
}

std::vector<Ranges> adaptive_ranges(const Dims& input, const Dims& output) {
  std::vector<Ranges> all;
  const size_t first = input.size() - output.size();
  for (size_t i = 0; i < output.size(); ++i) {
    all.push_back(adaptive(static_cast<int64_t>(first + i), input[first + i], output[i]));
  }
  return all;
}

Value adaptive_divisor(Builder& b, const std::vector<Ranges>& all, const TensorType& type) {
  Value count;
  for (const Ranges& r : all) {
    const Value line = vary_along(b, type, r.dim, r.lengths);
    count = count ? multiply(count, line) : line;
  }
  return count;
}

Values adaptive_avg_pool(Call& call) {
  const Value self = call.tensor("self");
  Value x = convert(self, compute_type(self.dtype()));
  const std::vector<Ranges> all = adaptive_ranges(x.dims(), call.ints("output_size"));
  for (auto r = all.rbegin(); r != all.rend(); ++r)
    x = sum_ranges(x, r->dim, r->starts, r->lengths);
  return {convert(divide(x, adaptive_divisor(call.builder(), all, x.type())), self.dtype())};
}

Values adaptive_avg_pool_backward(Call& call, int64_t count) {
  const Value grad = call.tensor("grad_output");
  Value x = convert(grad, compute_type(grad.dtype()));
  const Dims output(grad.dims().end() - count, grad.dims().end());
  const std::vector<Ranges> all = adaptive_ranges(call.tensor("self").dims(), output);
  x = divide(x, adaptive_divisor(call.builder(), all, x.type()));
  for (const Ranges& r : all) {
    const Ranges t = transposed(r);
    x = sum_ranges(x, t.dim, t.starts, t.lengths);
  }
  return {convert(x, grad.dtype())};
}

// --- Maxima --------------------------------------------------------------------------------------

// A running maximum with the flat position it was found at. As in PyTorch the first of equals
// wins, and the last NaN. Positions are s32: planes of more than 2^31 elements are refused.
struct Best {
  Value value, index;
};

Best better(const Best& best, const Best& candidate) {
  Value wins = gt(candidate.value, best.value);
  if (is_float(candidate.value.dtype())) {
    wins = or_(wins, ne(candidate.value, candidate.value));
  }
  return {select(wins, candidate.value, best.value), select(wins, candidate.index, best.index)};
}

// Element k of every window along one dimension.
using Tap = std::function<Value(Value, int64_t k)>;

// One dimension's part of a max pool. `best.index` is empty for the first (innermost) one.
// `first` (over the output) is where the window so far begins: what a window of -inf reports.
Best max_stage(const Best& best, int64_t dim, int64_t kernel, int64_t plane_stride, Value first,
               const Tap& value_tap, const Tap& index_tap,
               const std::function<Dims(int64_t)>& positions) {
  Best out;
  for (int64_t k = 0; k < kernel; ++k) {
    Best candidate{value_tap(best.value, k), {}};
    Builder& b = candidate.value.builder();
    const TensorType index_type{ElementType::kS32, candidate.value.dims()};
    Dims flat = positions(k);
    for (int64_t& p : flat) p *= plane_stride;
    candidate.index = vary_along(b, index_type, dim, flat);
    if (best.index) candidate.index = add(candidate.index, index_tap(best.index, k));
    if (!out.value) out = {lowest(b, candidate.value.type()), first};
    out = better(out, candidate);
  }
  return out;
}

// Where the windows begin, for the dimensions from axis `from` on.
Value first_positions(Builder& b, const Dims& dims, const std::vector<Dims>& firsts,
                      const Dims& plane_strides, size_t from) {
  const int64_t leading = static_cast<int64_t>(dims.size() - firsts.size());
  const TensorType type{ElementType::kS32, dims};
  Value sum;
  for (size_t i = from; i < firsts.size(); ++i) {
    Dims flat = firsts[i];
    for (int64_t& p : flat) p *= plane_strides[i];
    const Value line = vary_along(b, type, leading + static_cast<int64_t>(i), flat);
    sum = sum ? add(sum, line) : line;
  }
  return sum;
}

Dims plane_strides(const Dims& input, int64_t count) {
  Dims strides(count, 1);
  for (int64_t i = count - 2; i >= 0; --i) {
    strides[i] = strides[i + 1] * input[input.size() - count + i + 1];
  }
  if (strides[0] * input[input.size() - count] > INT32_MAX) {
    throw Unsupported("max_pool: planes of more than 2^31 elements are not covered");
  }
  return strides;
}

// Long windows: (value, index) pairs reduced by the compiler's own loop.
Best max_by_window(const Best& best, const Axis& a, int64_t plane_stride) {
  Builder& b = best.value.builder();
  const TensorType index_type{ElementType::kS32, best.value.dims()};
  Dims flat;
  for (int64_t i = 0; i < a.in; ++i) flat.push_back(i * plane_stride);
  Value index = vary_along(b, index_type, a.dim, flat);
  if (best.index) index = add(index, best.index);
  const TensorType value_scalar{best.value.dtype(), {}};
  const Value none = scalar(b, ElementType::kS32, int64_t{INT32_MAX});
  const int64_t rank = best.value.rank();
  Window w{Dims(rank, 1), Dims(rank, 1), {}, Dims(rank, 1), Dims(rank, 0), Dims(rank, 0)};
  w.dimensions[a.dim] = a.kernel;
  w.strides[a.dim] = a.stride;
  w.window_dilations[a.dim] = a.dilation;
  const Value wide = padded(best.value, a, lowest(b, value_scalar));
  const Value wide_index = padded(index, a, none);
  const Values out = reduce_window({wide, wide_index}, {lowest(b, value_scalar), none}, w,
                                   [](const Values& v) -> Values {
                                     const Value x = v[0], i = v[1], y = v[2], j = v[3];
                                     Value wins = or_(gt(y, x), and_(eq(y, x), lt(j, i)));
                                     if (is_float(x.dtype())) {
                                       const Value y_nan = ne(y, y), x_nan = ne(x, x);
                                       wins = or_(wins, and_(y_nan, or_(eq(x, x), gt(j, i))));
                                       wins = and_(wins, or_(y_nan, not_(x_nan)));
                                     }
                                     return {select(wins, y, x), select(wins, j, i)};
                                   });
  return {out[0], out[1]};
}

Values results(const Best& best) { return {best.value, convert(best.index, ElementType::kS64)}; }

void require_ordered(Value x) {
  if (is_complex(x.dtype()) || is_bool(x.dtype())) {
    throw Unsupported("max_pool: expected a real, not bool, input");
  }
}

Values max_pool(Call& call, int64_t count) {
  const Value self = call.tensor("self");
  require_ordered(self);
  const Axes all = axes(call, self.dims(), count);
  const Dims strides = plane_strides(self.dims(), count);
  std::vector<Dims> firsts;
  for (const Axis& a : all) firsts.push_back(a.firsts());
  // Halves one by one would be converted for each comparison.
  Best best{convert(self, compute_type(self.dtype())), {}};
  Dims dims = self.dims();
  Builder& b = call.builder();
  for (int64_t i = count - 1; i >= 0; --i) {
    const Axis& a = all[i];
    dims[a.dim] = a.out;
    if (a.kernel > kMaxUnrolled) {
      best = max_by_window(best, a, strides[i]);
      continue;
    }
    const Value wide = padded(best.value, a, lowest(b, {best.value.dtype(), {}}));
    const Value wide_index =
        best.index ? padded(best.index, a, scalar(b, ElementType::kS32, 0)) : Value();
    best = max_stage(
        {wide, wide_index}, a.dim, a.kernel, strides[i],
        first_positions(b, dims, firsts, strides, i),
        [&](Value x, int64_t k) { return tap(x, a, k); },
        [&](Value x, int64_t k) { return tap(x, a, k); },
        [&](int64_t k) { return a.positions(k); });
  }
  return results(best);
}

Values adaptive_max_pool(Call& call, int64_t count) {
  const Value self = call.tensor("self");
  require_ordered(self);
  const Dims output = call.ints("output_size");
  const std::vector<Ranges> all = adaptive_ranges(self.dims(), output);
  const Dims strides = plane_strides(self.dims(), count);
  std::vector<Dims> firsts;
  for (const Ranges& r : all) firsts.push_back(r.starts);
  // Halves one by one would be converted for each comparison.
  Best best{convert(self, compute_type(self.dtype())), {}};
  Dims dims = self.dims();
  Builder& b = call.builder();
  for (int64_t i = count - 1; i >= 0; --i) {
    const Ranges& r = all[i];
    dims[r.dim] = output[i];
    int64_t longest = 0;
    for (const int64_t length : r.lengths) longest = std::max(longest, length);
    // Shorter windows see their last element again, which changes nothing.
    const auto positions = [&](int64_t k) {
      Dims where;
      for (size_t o = 0; o < r.starts.size(); ++o) {
        where.push_back(r.starts[o] + std::min(k, r.lengths[o] - 1));
      }
      return where;
    };
    const Tap take = [&](Value x, int64_t k) { return take_along(x, r.dim, positions(k)); };
    best = max_stage(best, r.dim, longest, strides[i], first_positions(b, dims, firsts, strides, i),
                     take, take, positions);
  }
  return results(best);
}

// --- Gradients of maxima -------------------------------------------------------------------------

// [..., window positions] to [rows, columns], over the last `count` dimensions.
Value planes(Value x, int64_t count) {
  const Dims leading(x.dims().begin(), x.dims().end() - count);
  const Dims trailing(x.dims().end() - count, x.dims().end());
  return reshape(x, {product(leading), product(trailing)});
}

// Writes values into planes of zeros at flat positions; `combine` says what happens to equals.
Value scatter_into_planes(Value values, Value indices, const Dims& dims, int64_t count,
                          const Region& combine) {
  Builder& b = values.builder();
  const Value flat = planes(values, count), where = planes(indices, count);
  const TensorType index_type{where.dtype(), {flat.dim(0), flat.dim(1), 1}};
  const Value row = iota(b, index_type, 0);
  const Value index = concatenate({row, reshape(where, index_type.dims)}, 2);
  const Value zero = planes(splat(b, {values.dtype(), dims}, 0), count);
  const ScatterDims how{.update_window_dims = {},
                        .inserted_window_dims = {0, 1},
                        .scatter_dims_to_operand_dims = {0, 1},
                        .index_vector_dim = 2};
  return reshape(scatter(zero, index, flat, how, combine), dims);
}

Values sum_values(const Values& v) { return {add(v[0], v[1])}; }
Values last_value(const Values& v) { return {v[1]}; }

Value scatter_gradient(const Call& call, int64_t count) {
  const Value grad = call.tensor("grad_output");
  return scatter_into_planes(convert(grad, compute_type(grad.dtype())), call.tensor("indices"),
                             call.tensor("self").dims(), count, sum_values);
}

Values adaptive_max_pool_backward(Call& call, int64_t count) {
  return {scatter_gradient(call, count)};
}

// Small windows: for each of its positions, the gradients of the windows whose maximum was there.
Values max_pool_backward(Call& call, int64_t count) {
  const Value grad = call.tensor("grad_output"), self = call.tensor("self");
  const Axes all = axes(call, self.dims(), count);
  if (taps(all) > kMaxUnrolled) return {scatter_gradient(call, count)};
  const Value x = convert(grad, compute_type(grad.dtype()));
  const Value index = convert(call.tensor("indices"), ElementType::kS32);
  const Dims strides = plane_strides(self.dims(), count);
  const Value zero = full_like(x, 0);
  Value sum;
  for (int64_t t = 0; t < taps(all); ++t) {
    Dims k(count);
    int64_t rest = t;
    for (int64_t i = count - 1; i >= 0; --i) {
      k[i] = rest % all[i].kernel;
      rest /= all[i].kernel;
    }
    std::vector<Dims> positions;
    for (int64_t i = 0; i < count; ++i) positions.push_back(all[i].positions(k[i]));
    const Value here = first_positions(call.builder(), x.dims(), positions, strides, 0);
    // Positions outside the input may look like ones inside it: they are cropped below.
    Value part = select(eq(index, here), x, zero);
    for (int64_t i = 0; i < count; ++i) part = untap(part, all[i], k[i]);
    sum = sum ? add(sum, part) : part;
  }
  return {sum};
}

Values max_unpool(Call& call) {
  const Value self = call.tensor("self");
  const Dims output = call.ints("output_size");
  const int64_t count = static_cast<int64_t>(output.size());
  Dims dims(self.dims().begin(), self.dims().end() - count);
  dims.insert(dims.end(), output.begin(), output.end());
  return {scatter_into_planes(self, call.tensor("indices"), dims, count, last_value)};
}

using PoolRule = Values (*)(Call&, int64_t);

Rule over(PoolRule rule, int64_t count) {
  return [rule, count](Call& call) { return rule(call, count); };
}

}  // namespace

void register_pooling(Registry& r) {
  for (const int64_t n : {2, 3}) {
    const std::string d = std::to_string(n) + "d";
    r.add("aten::avg_pool" + d, over(avg_pool, n));
    r.add("aten::avg_pool" + d + "_backward", over(avg_pool_backward, n));
    r.add("aten::_adaptive_avg_pool" + d, adaptive_avg_pool);
    r.add("aten::adaptive_avg_pool" + d + ".out", adaptive_avg_pool);
    r.add("aten::_adaptive_avg_pool" + d + "_backward", over(adaptive_avg_pool_backward, n));
    r.add("aten::max_pool" + d + "_with_indices", over(max_pool, n));
    r.add("aten::max_pool" + d + "_with_indices_backward", over(max_pool_backward, n));
    r.add("aten::adaptive_max_pool" + d, over(adaptive_max_pool, n));
    r.add("aten::adaptive_max_pool" + d + "_backward", over(adaptive_max_pool_backward, n));
    r.add("aten::max_unpool" + d, max_unpool);
  }
  r.add("aten::adaptive_avg_pool3d_backward.grad_input", over(adaptive_avg_pool_backward, 3));
  register_fractional_pooling(r);
}

}  // namespace torch_tpu::lowering
