// Reductions of neighbouring elements, given how many belong together.
#include <limits>

#include "lowering/expression.h"
#include "lowering/indexing.h"
#include "lowering/promotion.h"
#include "lowering/reduction.h"
#include "lowering/scan.h"
#include "lowering/sorting.h"

namespace torch_tpu::lowering {

namespace sh = stablehlo;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Segments {
  int64_t batch = 1, count = 0, elements = 0, inner = 1;
  Dims result;    // the shape of what the segments reduce to
  Value of;       // [batch, elements] s32: the segment of each element, `count` if it is in none
  Value lengths;  // [batch, count] s32
};

Segments segments(const Call& call, const Dims& data) {
  const int64_t axis = wrap_dim(call.integer_or("axis", 0), static_cast<int64_t>(data.size()));
  const bool by_length = call.has("lengths");
  if (!by_length && !call.has("offsets"))
    throw Unsupported(call.op() + ": neither lengths nor offsets");
  Value bounds = sh::convert(call.tensor(by_length ? "lengths" : "offsets"), ElementType::kS32);
  if (bounds.rank() != axis + 1) throw Unsupported(call.op() + ": lengths of another rank");
  Segments s;
  s.elements = data[static_cast<size_t>(axis)];
  s.batch = sh::product(Dims(data.begin(), data.begin() + axis));
  s.inner = sh::product(Dims(data.begin() + axis + 1, data.end()));
  s.count = bounds.dim(axis) - (by_length ? 0 : 1);
  s.result = bounds.dims();
  s.result.back() = s.count;
  s.result.insert(s.result.end(), data.begin() + axis + 1, data.end());
  if (s.batch * s.count * s.elements * s.inner <= 0) throw Unsupported(call.op() + ": no elements");

  bounds = sh::reshape(bounds, {s.batch, bounds.dim(axis)});
  Value ends, first;
  if (by_length) {
    s.lengths = bounds;
    ends = running_sum(bounds, 1);
    first = constant_like(sh::slice_dim(ends, 1, 0, 1), 0);
  } else {
    ends = sh::slice_dim(bounds, 1, 1, s.count + 1);
    first = sh::slice_dim(bounds, 1, 0, 1);
    s.lengths = ends - sh::slice_dim(bounds, 1, 0, s.count);
  }
  const TensorType positions{ElementType::kS32, {s.batch, s.elements}};
  const Value position = sh::iota(bounds.builder(), positions, 1);
  const Value segment = count_before(ends, position, /*right=*/true);
  s.of = choose(position < sh::broadcast_to(first, positions.dims), static_cast<double>(s.count),
                segment);
  return s;
}

// [batch, elements] in front of all inner elements.
Value each(Value v, const Segments& s) {
  return sh::broadcast_in_dim(v, {s.batch, v.dim(1), s.inner}, {0, 1});
}

Value combined(Value x, const Segments& s, Value start, Merge merge) {
  return put_along(start, 1, each(s.of, s), x, merge);
}

Value start_with(Value x, const Segments& s, double number) {
  return number_of(x.builder(), TensorType{x.dtype(), {s.batch, s.count, s.inner}}, number);
}

// What each element's segment has; anything for elements in none.
Value taken(Value per_segment, const Segments& s) {
  const Value last = constant_like(s.of, static_cast<double>(s.count - 1));
  return take_along(per_segment, 1, each(sh::minimum(s.of, last), s));
}

Value initial_or(const Call& call, Value x, const Segments& s, double otherwise) {
  if (!call.has("initial")) return start_with(x, s, otherwise);
  return sh::broadcast_to(call.number("initial", x.dtype()), {s.batch, s.count, s.inner});
}

Value elements(const Call& call, const Segments& s) {
  const Value data = convert_halves(call.tensor("data"));
  if (!sh::is_float(data.dtype())) throw Unsupported(call.op() + ": not real floating point");
  return sh::reshape(data, {s.batch, s.elements, s.inner});
}

Values segment_reduce(Call& call) {
  const Segments s = segments(call, call.tensor("data").dims());
  const Value x = elements(call, s);
  const std::string how = call.string("reduce");
  Value out;
  if (how == "max") {
    out = combined(x, s, initial_or(call, x, s, -kInfinity), Merge::kMax);
  } else if (how == "min") {
    out = combined(x, s, initial_or(call, x, s, kInfinity), Merge::kMin);
  } else if (how == "prod") {
    out = combined(x, s, initial_or(call, x, s, 1), Merge::kMultiply);
  } else if (how == "sum" || how == "mean") {
    out = combined(x, s, initial_or(call, x, s, 0), Merge::kAdd);
  } else {
    throw Unsupported("segment_reduce: " + how);
  }
  if (how == "mean") {
    const Value length = sh::convert(each(s.lengths, s), x.dtype());
    const Value mean = out / sh::maximum(length, constant_like(length, 1));
    const double nothing = std::numeric_limits<double>::quiet_NaN();
    out = call.has("initial") ? mean : choose(length > 0.0, mean, nothing);
  }
  return {sh::reshape(out, s.result)};
}

Values segment_reduce_backward(Call& call) {
  const Segments s = segments(call, call.tensor("data").dims());
  const Value x = elements(call, s);
  const std::string how = call.string("reduce");
  const auto per_segment = [&](std::string_view name) {
    return sh::reshape(sh::convert(call.tensor(name), x.dtype()), {s.batch, s.count, s.inner});
  };
  const Value grad = taken(per_segment("grad"), s);
  Value result = grad;
  if (how == "mean") {
    result = grad / taken(sh::convert(each(s.lengths, s), x.dtype()), s);
  } else if (how == "max" || how == "min") {
    const Value hit = is_nan(x) | equals(x, taken(per_segment("output"), s));
    const Value ones = sh::convert(hit, x.dtype());
    result = grad * ones / taken(combined(ones, s, start_with(x, s, 0), Merge::kAdd), s);
    result = choose(hit, result, 0.0);
  } else if (how == "prod") {
    // The product of the others: of those that are not zero, if this is the only zero.
    const Value zero = equals(x, 0.0);
    const Value zeros_in =
        taken(combined(sh::convert(zero, x.dtype()), s, start_with(x, s, 0), Merge::kAdd), s);
    const Value others =
        taken(combined(choose(zero, 1.0, x), s, initial_or(call, x, s, 1), Merge::kMultiply), s);
    const Value output = taken(per_segment("output"), s);
    result = grad * choose(zero, choose(equals(zeros_in, 1.0), others, 0.0),
                           output / choose(zero, 1.0, x));
  } else if (how != "sum") {
    throw Unsupported("_segment_reduce_backward: " + how);
  }
  const Value inside = each(s.of, s) < static_cast<double>(s.count);
  return {sh::reshape(choose(inside, result, 0.0), call.tensor("data").dims())};
}

}  // namespace

void register_segment_reduce(Registry& r) {
  r.add("aten::segment_reduce", segment_reduce);
  r.add("aten::_segment_reduce_backward", segment_reduce_backward);
}

}  // namespace torch_tpu::lowering
