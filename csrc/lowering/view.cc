#include "lowering/view.h"

#include <algorithm>
#include <numeric>

#include "lowering/platform.h"

namespace torch_tpu::lowering {

namespace sh = stablehlo;
using sh::Dims;
using sh::ElementType;
using sh::TensorType;
using sh::Value;
using sh::Values;

namespace {

struct ViewDim {
  int64_t size, stride;
  int64_t index;  // in the view
};

// A view as a box: the base reshaped to `radix`, sliced, reshaped to `kept` (the view's dimensions
// of size > 1 that do not repeat, largest stride first).
struct Box {
  Dims radix, start, limit, step;
  Dims kept;
  Dims view_dims;  // view dimension of each kept one

  bool unit_steps() const {
    return std::all_of(step.begin(), step.end(), [](int64_t s) { return s == 1; });
  }
  // From the first to behind the last element, per digit.
  Dims span() const {
    Dims out;
    for (size_t i = 0; i < radix.size(); ++i) out.push_back(limit[i] - start[i]);
    return out;
  }
  // Elements per digit.
  Dims extent() const {
    Dims out;
    for (size_t i = 0; i < radix.size(); ++i) {
      out.push_back((limit[i] - start[i] + step[i] - 1) / step[i]);
    }
    return out;
  }
};

// The same for a box in the base's own dimensions.
Box to_box(const BaseBox& from, const ViewSpec& view) {
  Box box;
  for (size_t k = 0; k < from.rank; ++k) {
    box.radix.push_back(from.base[k]);
    box.start.push_back(0);
    box.limit.push_back(from.span[k]);
    box.step.push_back(from.step[k]);
    if (from.view_dim[k] < 0) continue;
    box.view_dims.push_back(from.view_dim[k]);
    box.kept.push_back(view.sizes[static_cast<size_t>(from.view_dim[k])]);
  }
  return box;
}

std::vector<ViewDim> moving_dims(const ViewSpec& view) {
  std::vector<ViewDim> dims;
  for (size_t i = 0; i < view.sizes.size(); ++i) {
    if (view.sizes[i] != 1 && view.strides[i] != 0) {
      dims.push_back({view.sizes[i], view.strides[i], static_cast<int64_t>(i)});
    }
  }
  std::stable_sort(dims.begin(), dims.end(),
                   [](const ViewDim& a, const ViewDim& b) { return a.stride > b.stride; });
  return dims;
}

// Tries to read the base in the mixed radix system whose digit i has weight cuts[i]: each moving
// dimension must step through one digit without a carry.
std::optional<Box> box_with_cuts(int64_t numel, const std::vector<ViewDim>& dims, const Dims& cuts,
                                 int64_t offset) {
  Box box;
  int64_t above = numel, rest = offset;
  for (size_t i = 0; i < dims.size(); ++i) {
    const int64_t cut = cuts[i];
    if (cut <= 0 || cut >= above + (i == 0 ? 1 : 0) || above % cut != 0 ||
        dims[i].stride % cut != 0) {
      return std::nullopt;
    }
    const int64_t radix = above / cut, step = dims[i].stride / cut, digit = rest / cut;
    const int64_t limit = digit + (dims[i].size - 1) * step + 1;
    if (limit > radix) return std::nullopt;
    box.radix.push_back(radix);
    box.start.push_back(digit);
    box.limit.push_back(limit);
    box.step.push_back(step);
    box.kept.push_back(dims[i].size);
    box.view_dims.push_back(dims[i].index);
    rest %= cut;
    above = cut;
  }
  if (above != 1 || dims.empty()) {
    box.radix.push_back(above);
    box.start.push_back(rest);
    box.limit.push_back(rest + 1);
    box.step.push_back(1);
  }
  return box;
}

std::optional<Box> plan_box(const Dims& base, const ViewSpec& view) {
  const std::vector<ViewDim> dims = moving_dims(view);
  const int64_t numel = sh::product(base);
  for (size_t i = 1; i < dims.size(); ++i) {
    if (dims[i].stride == dims[i - 1].stride) return std::nullopt;
  }
  Dims base_strides;  // of the base's dimensions, largest first, 1 last
  int64_t stride = numel;
  for (const int64_t d : base) {
    stride /= d;
    if (base_strides.empty() || base_strides.back() != stride) base_strides.push_back(stride);
  }
  if (base_strides.empty() || base_strides.back() != 1) base_strides.push_back(1);

  // Digits along the base's own dimensions; along the view's strides; the first where they do
  // not collide.
  Dims own, theirs, mixed;
  for (const ViewDim& d : dims) {
    int64_t cut = 1;
    for (const int64_t s : base_strides) {
      if (s <= d.stride && d.stride % s == 0) {
        cut = s;
        break;
      }
    }
    own.push_back(cut);
    theirs.push_back(d.stride);
  }
  mixed = own;
  for (size_t i = 0; i + 1 < own.size(); ++i) {
    if (own[i] == own[i + 1]) mixed[i] = theirs[i];
  }
  for (const Dims* cuts : {&own, &theirs, &mixed}) {
    if (auto box = box_with_cuts(numel, dims, *cuts, view.offset)) return box;
  }
  return std::nullopt;
}

// kept (sorted by stride) -> the view's order; returns the permutation of kept.
Dims to_view_order(const Box& box) {
  Dims perm(box.view_dims.size());
  std::iota(perm.begin(), perm.end(), 0);
  std::sort(perm.begin(), perm.end(), [&](int64_t a, int64_t b) {
    return box.view_dims[static_cast<size_t>(a)] < box.view_dims[static_cast<size_t>(b)];
  });
  return perm;
}

Value transpose_if(Value v, const Dims& perm) {
  for (size_t i = 0; i < perm.size(); ++i) {
    if (perm[i] != static_cast<int64_t>(i)) return sh::transpose(v, perm);
  }
  return v;
}

Value reshape_if(Value v, const Dims& dims) { return v.dims() == dims ? v : sh::reshape(v, dims); }

Value flat_indices(sh::Builder& b, const ViewSpec& view) {
  const TensorType type{ElementType::kS64, view.sizes};
  Value index = sh::splat(b, type, view.offset);
  for (size_t i = 0; i < view.sizes.size(); ++i) {
    if (view.sizes[i] == 1 || view.strides[i] == 0) continue;
    const Value steps = sh::multiply(sh::iota(b, type, static_cast<int64_t>(i)),
                                     sh::splat(b, type, view.strides[i]));
    index = sh::add(index, steps);
  }
  return index;
}

// The box's part of the base (in the shape of its digits), at `origin` where that is not known.
Value cut(Value digits, const Box& box, const Values& origin) {
  if (box.extent() == box.radix) return digits;
  if (origin.empty()) return sh::slice(digits, box.start, box.limit, box.step);
  const Value whole = sh::dynamic_slice(digits, origin, box.span());
  return box.unit_steps() ? whole
                          : sh::slice(whole, Dims(box.step.size(), 0), box.span(), box.step);
}

// Whether the digits divide the base's dimensions; then, for each dimension, how many they are.
std::optional<std::vector<size_t>> digits_of_dims(const Dims& base, const Dims& radix) {
  std::vector<size_t> counts;
  size_t digit = 0;
  for (const int64_t d : base) {
    const size_t first = digit;
    int64_t covered = 1;
    while (covered < d && digit < radix.size()) covered *= radix[digit++];
    if (covered != d) return std::nullopt;
    counts.push_back(digit - first);
  }
  while (digit < radix.size() && radix[digit] == 1) ++digit;
  return digit == radix.size() ? std::optional(counts) : std::nullopt;
}

// The box's part of the base in the shape of its digits, cut from the base's own dimensions: as a
// third of a linear layer's output is, which holds queries, keys and values. Dividing a dimension
// moves its data on a TPU; this way only what is wanted is moved. Null where the box is no box of
// the base's dimensions too.
std::optional<Value> cut_before_dividing(Value base, const Box& box) {
  if (!box.unit_steps()) return std::nullopt;
  // Dimensions that were only joined to make the base.
  const auto* made = base.builder().rearrangement(base);
  if (made && made->permutation.empty() && made->operand.rank() > base.rank()) {
    if (const auto part = cut_before_dividing(made->operand, box)) return part;
  }
  const auto counts = digits_of_dims(base.dims(), box.radix);
  if (!counts) return std::nullopt;
  Dims start, limit;
  size_t digit = 0;
  for (size_t dim = 0; dim < counts->size(); ++dim) {
    int64_t from = 0, to = 1;
    for (size_t i = 0; i < (*counts)[dim]; ++i, ++digit) {
      const int64_t radix = box.radix[digit];
      if (to - from == 1) {
        to = from * radix + box.limit[digit];
        from = from * radix + box.start[digit];
      } else if (box.start[digit] == 0 && box.limit[digit] == radix) {
        from *= radix;
        to *= radix;
      } else {
        return std::nullopt;
      }
    }
    start.push_back(from);
    limit.push_back(to);
  }
  return sh::slice(base, start, limit);
}

// (size, stride) of what is more than one element long, each as far as it goes.
std::vector<std::pair<int64_t, int64_t>> joined_steps(const Dims& sizes, const Dims& radix) {
  std::vector<std::pair<int64_t, int64_t>> steps;  // the smallest stride first
  int64_t stride = 1;
  for (size_t i = sizes.size(); i-- > 0; stride *= radix[i]) {
    if (sizes[i] == 1) continue;
    if (!steps.empty() && steps.back().first * steps.back().second == stride) {
      steps.back().first *= sizes[i];
    } else {
      steps.emplace_back(sizes[i], stride);
    }
  }
  return steps;
}

// The box in the dimensions `dims` of the base, if it is one there too.
std::optional<Box> in_dims(const Dims& dims, const Box& box) {
  if (!box.unit_steps()) return std::nullopt;
  int64_t first = 0, last = 0, weight = 1;
  for (size_t i = box.radix.size(); i-- > 0; weight *= box.radix[i]) {
    first += box.start[i] * weight;
    last += (box.limit[i] - 1) * weight;
  }
  Box own;
  own.radix = dims;
  own.start = own.limit = own.step = Dims(dims.size(), 1);
  for (size_t i = dims.size(); i-- > 0; first /= dims[i], last /= dims[i]) {
    own.start[i] = first % dims[i];
    own.limit[i] = last % dims[i] + 1;
    if (own.limit[i] <= own.start[i]) return std::nullopt;
  }
  if (joined_steps(own.extent(), dims) != joined_steps(box.extent(), box.radix)) {
    return std::nullopt;
  }
  return own;
}

// The base (in the shape of its digits) with `part`, as cut() gives it, in place. `chosen`: each
// element is chosen from one of the two, so that nothing can be updated before it is read.
Value paste(Value digits, Value part, const Box& box, const Values& origin, bool chosen = false) {
  sh::Builder& b = digits.builder();
  if (box.extent() == box.radix) return part;
  if (box.unit_steps() && !chosen) {
    Values start = origin;
    if (start.empty()) {
      for (const int64_t s : box.start) start.push_back(sh::scalar(b, ElementType::kS32, s));
    }
    return sh::dynamic_update_slice(digits, part, start);
  }
  if (!origin.empty()) {
    Box inside = box;
    inside.radix = inside.limit = box.span();
    inside.start.assign(box.start.size(), 0);
    const Value region = sh::dynamic_slice(digits, origin, box.span());
    return sh::dynamic_update_slice(digits, paste(region, part, inside, {}), origin);
  }
  Dims high, interior;
  for (size_t i = 0; i < box.radix.size(); ++i) {
    high.push_back(box.radix[i] - box.limit[i]);
    interior.push_back(box.step[i] - 1);
  }
  const Value spread = sh::pad(part, sh::scalar(b, part.dtype(), 0), box.start, high, interior);
  const Value mask = sh::pad(sh::splat(b, TensorType{ElementType::kPred, part.dims()}, true),
                             sh::scalar(b, ElementType::kPred, false), box.start, high, interior);
  return sh::select(mask, spread, digits);
}

Value read_box(Value base, const Box& box, const ViewSpec& view, const Values& origin = {}) {
  std::optional<Value> part;
  if (origin.empty() && box.extent() != box.radix) part = cut_before_dividing(base, box);
  Value v = part ? *part : cut(reshape_if(base, box.radix), box, origin);
  v = reshape_if(v, box.kept);
  v = transpose_if(v, to_view_order(box));
  Dims mapping = box.view_dims;
  std::sort(mapping.begin(), mapping.end());
  if (mapping.size() == view.sizes.size()) return v;
  Dims ones(view.sizes.size(), 1);
  for (const int64_t d : mapping) ones[static_cast<size_t>(d)] = view.sizes[static_cast<size_t>(d)];
  if (ones == view.sizes) return reshape_if(v, view.sizes);
  return sh::broadcast_in_dim(v, view.sizes, mapping);
}

// `update` in the view's shape, in which nothing repeats.
Value write_box(Value base, const Box& box, Value update, const Values& origin = {}) {
  const Dims perm = to_view_order(box);
  Dims in_view_order, inverse(perm.size());
  for (size_t i = 0; i < perm.size(); ++i) {
    in_view_order.push_back(box.kept[static_cast<size_t>(perm[i])]);
    inverse[static_cast<size_t>(perm[i])] = static_cast<int64_t>(i);
  }
  Value v = transpose_if(reshape_if(update, in_view_order), inverse);
  // Without a reshape where it can be: XLA for CPUs may update the reshaped base in place although
  // the update is computed, in the same loop, from other elements of the base itself.
  if (origin.empty() && box.extent() != box.radix) {
    if (const std::optional<Box> own = in_dims(base.dims(), box)) {
      return paste(base, reshape_if(v, own->extent()), *own, {});
    }
  }
  v = reshape_if(v, box.extent());
  const bool chosen =
      origin.empty() && box.radix != base.dims() && CompilingFor::platform() == Platform::kCpu;
  return reshape_if(paste(reshape_if(base, box.radix), v, box, origin, chosen), base.dims());
}

// Of elements that share a place, the first is written (PyTorch refuses such writes earlier).
Value without_repeats(Value update, ViewSpec& view) {
  for (size_t i = 0; i < view.sizes.size(); ++i) {
    if (view.strides[i] == 0 && view.sizes[i] != 1) {
      update = sh::slice_dim(update, static_cast<int64_t>(i), 0, 1);
      view.sizes[i] = 1;
    }
  }
  return update;
}

Value read_same_dtype(Value base, const ViewSpec& view) {
  sh::Builder& b = base.builder();
  if (sh::product(view.sizes) == 0) {
    return sh::splat(b, TensorType{view.dtype, view.sizes}, 0);
  }
  if (is_identity(base.type(), view)) return base;
  if (const std::optional<Box> box = plan_box(base.dims(), view)) return read_box(base, *box, view);
  const Value flat = sh::flatten(base);
  const Value index = sh::reshape(flat_indices(b, view), {sh::product(view.sizes), 1});
  sh::GatherDims dims;
  dims.collapsed_slice_dims = {0};
  dims.start_index_map = {0};
  dims.index_vector_dim = 1;
  return reshape_if(sh::gather(flat, index, dims, {1}), view.sizes);
}

Value write_same_dtype(Value base, const ViewSpec& view, Value update) {
  sh::Builder& b = base.builder();
  if (sh::product(view.sizes) == 0) return base;
  if (is_identity(base.type(), view)) return update;
  ViewSpec once = view;
  const Value v = without_repeats(update, once);
  if (const std::optional<Box> box = plan_box(base.dims(), once)) return write_box(base, *box, v);
  const Value flat = sh::flatten(base);
  const int64_t n = sh::product(once.sizes);
  const Value index = sh::reshape(flat_indices(b, once), {n, 1});
  sh::ScatterDims dims;
  dims.inserted_window_dims = {0};
  dims.scatter_dims_to_operand_dims = {0};
  dims.index_vector_dim = 1;
  const Value result = sh::scatter(flat, index, sh::reshape(v, {n}), dims,
                                   [](const sh::Values& a) { return sh::Values{a[1]}; });
  return reshape_if(result, base.dims());
}

// complex<T>[n...] -> T[n..., 2]
Value split_complex(Value v) {
  const int64_t last = v.rank();
  return sh::concatenate({sh::expand_dim(sh::real(v), last), sh::expand_dim(sh::imag(v), last)},
                         last);
}

Value join_complex(Value v) {  // T[..., 2] -> complex<T>[...]
  const int64_t last = v.rank() - 1;
  return sh::complex(sh::squeeze_dim(sh::slice_dim(v, last, 0, 1), last),
                     sh::squeeze_dim(sh::slice_dim(v, last, 1, 2), last));
}

}  // namespace

bool is_identity(const TensorType& base, const ViewSpec& view) {
  if (view.offset != 0 || view.dtype != base.dtype || view.sizes != base.dims) return false;
  int64_t stride = 1;
  for (size_t i = view.sizes.size(); i-- > 0;) {
    if (view.sizes[i] != 1 && view.strides[i] != stride) return false;
    stride *= view.sizes[i];
  }
  return true;
}

std::optional<Dims> dense_order(std::span<const int64_t> sizes, std::span<const int64_t> strides) {
  Dims order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  // Size-1 dimensions have no say: they keep their place between their neighbours as far as
  // sorting by stride allows.
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return strides[static_cast<size_t>(a)] > strides[static_cast<size_t>(b)];
  });
  bool contiguous = true;
  int64_t expect = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    if (sizes[i] != 1 && strides[i] != expect) contiguous = false;
    expect *= sizes[i];
  }
  if (contiguous || sh::product(sizes) == 0) {
    std::iota(order.begin(), order.end(), 0);
    return order;
  }
  expect = 1;
  for (size_t i = order.size(); i-- > 0;) {
    const auto d = static_cast<size_t>(order[i]);
    if (sizes[d] == 1) continue;
    if (strides[d] != expect) return std::nullopt;
    expect *= sizes[d];
  }
  return order;
}

std::optional<BaseBox> base_box(std::span<const int64_t> base, std::span<const int64_t> sizes,
                                std::span<const int64_t> strides, int64_t offset) {
  if (base.size() > BaseBox::kMaxRank) return std::nullopt;
  BaseBox box;
  box.rank = base.size();
  std::array<int64_t, BaseBox::kMaxRank> weight{};
  int64_t below = 1;
  for (size_t k = box.rank; k-- > 0;) {
    box.base[k] = base[k];
    box.span[k] = box.step[k] = 1;
    box.view_dim[k] = -1;
    weight[k] = below;
    below *= base[k];
  }
  if (below == 0) return std::nullopt;
  for (size_t k = 0; k < box.rank; ++k) {
    box.start[k] = offset / weight[k];
    offset %= weight[k];
  }
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 1 || strides[d] == 0) continue;
    // The dimension with the largest weight that the stride is a multiple of.
    size_t k = 0;
    while (k < box.rank &&
           (box.base[k] == 1 || weight[k] > strides[d] || strides[d] % weight[k] != 0)) {
      ++k;
    }
    if (k == box.rank || box.view_dim[k] >= 0) return std::nullopt;
    box.view_dim[k] = static_cast<int>(d);
    box.step[k] = strides[d] / weight[k];
    box.span[k] = (sizes[d] - 1) * box.step[k] + 1;
  }
  for (size_t k = 0; k < box.rank; ++k) {
    if (box.start[k] + box.span[k] > box.base[k]) return std::nullopt;
  }
  return box;
}

Value read_moving_view(Value base, const ViewSpec& view, const BaseBox& box, const Values& start) {
  return read_box(base, to_box(box, view), view, start);
}

Value write_moving_view(Value base, const ViewSpec& view, const BaseBox& box, const Values& start,
                        Value update) {
  ViewSpec once = view;
  const Value v = without_repeats(update, once);
  return write_box(base, to_box(box, once), v, start);
}

Value retype(Value value, ElementType dtype) {
  const ElementType from = value.dtype();
  if (from == dtype) return value;
  if (sh::is_complex(from)) return retype(sh::flatten(split_complex(value)), dtype);
  if (sh::is_complex(dtype)) {
    const Value parts = sh::flatten(retype(value, sh::real_type(dtype)));
    return join_complex(sh::reshape(parts, {parts.numel() / 2, 2}));
  }
  if (sh::is_bool(from)) return retype(sh::convert(value, ElementType::kU8), dtype);
  if (sh::is_bool(dtype)) return sh::convert(retype(value, ElementType::kU8), dtype);
  const int wf = sh::bit_width(from), wt = sh::bit_width(dtype);
  if (wf == wt) return sh::bitcast_convert(value, dtype);
  if (wf > wt) return sh::flatten(sh::bitcast_convert(sh::flatten(value), dtype));
  const int64_t k = wt / wf, n = value.numel();
  Value flat = sh::flatten(value);
  if (n % k != 0) flat = sh::slice_dim(flat, 0, 0, n / k * k);
  return sh::bitcast_convert(sh::reshape(flat, {n / k, k}), dtype);
}

Value read_view(Value base, const ViewSpec& view) {
  return read_same_dtype(retype(base, view.dtype), view);
}

Value write_view(Value base, const ViewSpec& view, Value update) {
  if (base.dtype() == view.dtype) return write_same_dtype(base, view, update);
  const Value typed = retype(base, view.dtype);
  Value back = sh::flatten(retype(write_same_dtype(typed, view, update), base.dtype()));
  if (back.numel() != base.numel()) {  // bytes beyond the last whole element stay
    back =
        sh::concatenate({back, sh::slice_dim(sh::flatten(base), 0, back.numel(), base.numel())}, 0);
  }
  return reshape_if(back, base.dims());
}

}  // namespace torch_tpu::lowering
