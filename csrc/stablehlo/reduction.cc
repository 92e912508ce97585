#include <algorithm>

#include "stablehlo/attributes.h"
#include "stablehlo/check.h"

namespace torch_tpu::stablehlo {
namespace {

void check_operands(std::string_view op, const Values& operands) {
  if (operands.empty()) fail(op, "expected at least one operand");
  for (const Value v : operands) {
    if (v.dims() == operands[0].dims()) continue;
    fail(op, "operands must have one shape, got " + to_string(types_of(operands)));
  }
}

void check_init(std::string_view op, const Values& operands, const Values& init) {
  check_operands(op, operands);
  if (types_of(init) == scalar_types(operands)) return;
  fail(op, "initial values must be " + to_string(scalar_types(operands)) + ", got " +
               to_string(types_of(init)));
}

// Accumulators, then elements.
std::vector<TensorType> reducer_arguments(const Values& operands) {
  std::vector<TensorType> types = scalar_types(operands);
  const std::vector<TensorType> elements = types;
  types.insert(types.end(), elements.begin(), elements.end());
  return types;
}

Values joined(const Values& a, const Values& b) {
  Values all = a;
  all.insert(all.end(), b.begin(), b.end());
  return all;
}

Value reduce_with(Value x, Value (*init)(Builder&, const TensorType&), const Dims& dimensions,
                  Value (*combine)(Value, Value)) {
  if (dimensions.empty()) return x;
  const Value start = init(x.builder(), {x.dtype(), {}});
  return reduce({x}, {start}, dimensions,
                [&](const Values& v) { return Values{combine(v[0], v[1])}; })[0];
}

Value zero(Builder& b, const TensorType& type) { return splat(b, type, 0); }
Value one(Builder& b, const TensorType& type) { return splat(b, type, 1); }
// All bits set: the neutral element of "and".
Value ones(Builder& b, const TensorType& type) {
  return is_signed_int(type.dtype) ? splat(b, type, -1) : highest(b, type);
}

}  // namespace

Values reduce(const Values& operands, const Values& init, const Dims& dimensions,
              const Region& body) {
  constexpr std::string_view kOp = "stablehlo.reduce";
  check_init(kOp, operands, init);
  check_dimensions(kOp, "dimensions", dimensions, operands[0].rank());
  Dims dims;
  for (int64_t i = 0; i < operands[0].rank(); ++i) {
    if (!contains(dimensions, i)) dims.push_back(operands[0].dim(i));
  }
  std::vector<TensorType> results;
  for (const Value v : operands) results.push_back({v.dtype(), dims});
  return operands[0].builder().append(
      kOp, joined(operands, init), "dimensions = " + dense_array(dimensions), results,
      {{reducer_arguments(operands), yielding(kOp, body, scalar_types(operands))}});
}

Value reduce_sum(Value x, const Dims& dimensions) { return reduce_with(x, zero, dimensions, add); }
Value reduce_prod(Value x, const Dims& dimensions) {
  return reduce_with(x, one, dimensions, multiply);
}
Value reduce_max(Value x, const Dims& dimensions) {
  return reduce_with(x, lowest, dimensions, maximum);
}
Value reduce_min(Value x, const Dims& dimensions) {
  return reduce_with(x, highest, dimensions, minimum);
}
Value reduce_and(Value x, const Dims& dimensions) { return reduce_with(x, ones, dimensions, and_); }
Value reduce_or(Value x, const Dims& dimensions) { return reduce_with(x, zero, dimensions, or_); }

namespace {

// A window with its defaults filled in and checked.
Window completed(std::string_view op, const Window& window, int64_t rank) {
  Window w = window;
  const auto fill = [&](std::string_view what, Dims& dims, int64_t value, int64_t least) {
    if (dims.empty()) dims.assign(static_cast<size_t>(rank), value);
    check_size(op, what, dims, rank);
    for (const int64_t d : dims) {
      if (d >= least) continue;
      fail(op, std::string(what) + " must be at least " + std::to_string(least) + ", got " +
                   to_string(dims));
    }
  };
  check_size(op, "window dimensions", w.dimensions, rank);
  fill("window dimensions", w.dimensions, 1, 1);
  fill("strides", w.strides, 1, 1);
  fill("base dilations", w.base_dilations, 1, 1);
  fill("window dilations", w.window_dilations, 1, 1);
  constexpr int64_t kAny = INT64_MIN;
  fill("low padding", w.padding_low, 0, kAny);
  fill("high padding", w.padding_high, 0, kAny);
  return w;
}

int64_t dilated(int64_t size, int64_t dilation) {
  return size == 0 ? 0 : (size - 1) * dilation + 1;
}

Dims windowed_dims(std::string_view op, const Dims& dims, const Window& w) {
  Dims result(dims.size());
  for (size_t i = 0; i < dims.size(); ++i) {
    const int64_t base =
        dilated(dims[i], w.base_dilations[i]) + w.padding_low[i] + w.padding_high[i];
    if (base < 0) {
      fail(op, "negative padding removes more than dimension " + std::to_string(i) + " of shape " +
                   to_string(dims));
    }
    const int64_t window = dilated(w.dimensions[i], w.window_dilations[i]);
    result[i] = base < window ? 0 : (base - window) / w.strides[i] + 1;
  }
  return result;
}

}  // namespace

Values reduce_window(const Values& operands, const Values& init, const Window& window,
                     const Region& body) {
  constexpr std::string_view kOp = "stablehlo.reduce_window";
  check_init(kOp, operands, init);
  const Window w = completed(kOp, window, operands[0].rank());
  const Dims dims = windowed_dims(kOp, operands[0].dims(), w);
  std::vector<TensorType> results;
  for (const Value v : operands) results.push_back({v.dtype(), dims});
  std::string attributes = "window_dimensions = " + dense_array(w.dimensions);
  attributes += ", window_strides = " + dense_array(w.strides);
  attributes += ", base_dilations = " + dense_array(w.base_dilations);
  attributes += ", window_dilations = " + dense_array(w.window_dilations);
  attributes += ", padding = " + padding_pairs(w.padding_low, w.padding_high);
  return operands[0].builder().append(
      kOp, joined(operands, init), attributes, results,
      {{reducer_arguments(operands), yielding(kOp, body, scalar_types(operands))}});
}

Value select_and_scatter(Value operand, Value source, Value init, const Window& window,
                         const Region& select_body, const Region& scatter_body) {
  constexpr std::string_view kOp = "stablehlo.select_and_scatter";
  check_scalar(kOp, "the initial value", init, operand.dtype());
  const Window w = completed(kOp, window, operand.rank());
  for (const Dims* dilations : {&w.base_dilations, &w.window_dilations}) {
    for (const int64_t d : *dilations) {
      if (d != 1) fail(kOp, "dilation is not supported, got " + to_string(*dilations));
    }
  }
  const TensorType expected{operand.dtype(), windowed_dims(kOp, operand.dims(), w)};
  if (source.type() != expected) {
    fail(kOp, "the source must be " + to_string(expected) + ", got " + to_string(source.type()));
  }
  std::string attributes = "window_dimensions = " + dense_array(w.dimensions);
  attributes += ", window_strides = " + dense_array(w.strides);
  attributes += ", padding = " + padding_pairs(w.padding_low, w.padding_high);
  const std::vector<TensorType> pair = scalar_types({operand}, 2);
  return operand.builder().append(
      kOp, {operand, source, init}, attributes, {operand.type()},
      {{pair, yielding(kOp, select_body, {{ElementType::kPred, {}}})},
       {pair, yielding(kOp, scatter_body, scalar_types({operand}))}})[0];
}

Values sort(const Values& operands, int64_t dimension, bool stable, const Region& less) {
  constexpr std::string_view kOp = "stablehlo.sort";
  check_operands(kOp, operands);
  check_dimension(kOp, "dimension", dimension, operands[0].rank());
  std::string attributes = "dimension = " + i64(dimension) + ", is_stable = ";
  attributes += boolean(stable);
  return operands[0].builder().append(
      kOp, operands, attributes, types_of(operands),
      {{scalar_types(operands, 2), yielding(kOp, less, {{ElementType::kPred, {}}})}});
}

}  // namespace torch_tpu::stablehlo
