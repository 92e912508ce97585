#include <algorithm>

#include "stablehlo/attributes.h"
#include "stablehlo/check.h"

namespace torch_tpu::stablehlo {

Value broadcast_in_dim(Value x, const Dims& dims, const Dims& mapping) {
  constexpr std::string_view kOp = "stablehlo.broadcast_in_dim";
  const TensorType result{x.dtype(), dims};
  check_size(kOp, "mapping", mapping, x.rank());
  check_dimensions(kOp, "mapping", mapping, result.rank());
  for (size_t i = 0; i < mapping.size(); ++i) {
    const int64_t from = x.dims()[i];
    const int64_t to = dims[static_cast<size_t>(mapping[i])];
    if (from == 1 || from == to) continue;
    fail(kOp, "dimension " + std::to_string(i) + " of " + to_string(x.type()) +
                  " does not fit dimension " + std::to_string(mapping[i]) + " of " +
                  to_string(result));
  }
  if (dims == x.dims() && std::is_sorted(mapping.begin(), mapping.end())) return x;
  return x.builder().append1(kOp, {x}, "broadcast_dimensions = " + dense_array(mapping), result);
}

Value broadcast_to(Value x, const Dims& dims) {
  if (x.dims() == dims) return x;
  const auto extra = static_cast<int64_t>(dims.size()) - x.rank();
  if (extra < 0) {
    fail("broadcast_to", to_string(x.type()) + " has more dimensions than " + to_string(dims));
  }
  Dims mapping(x.dims().size());
  for (size_t i = 0; i < mapping.size(); ++i) mapping[i] = static_cast<int64_t>(i) + extra;
  return broadcast_in_dim(x, dims, mapping);
}

Dims broadcast_shapes(const std::vector<Dims>& shapes) {
  size_t rank = 0;
  for (const Dims& shape : shapes) rank = std::max(rank, shape.size());
  Dims result(rank, 1);
  for (const Dims& shape : shapes) {
    const size_t offset = rank - shape.size();
    for (size_t i = 0; i < shape.size(); ++i) {
      int64_t& d = result[offset + i];
      if (shape[i] == 1 || shape[i] == d) continue;
      if (d == 1) {
        d = shape[i];
        continue;
      }
      std::string text;
      for (const Dims& s : shapes) text += (text.empty() ? "" : " and ") + to_string(s);
      fail("broadcast_shapes", "the shapes " + text + " do not broadcast together");
    }
  }
  return result;
}

Value reshape(Value x, const Dims& dims) {
  constexpr std::string_view kOp = "stablehlo.reshape";
  if (x.dims() == dims) return x;
  const TensorType result{x.dtype(), dims};
  if (result.numel() != x.numel()) {
    fail(kOp, to_string(x.type()) + " has " + std::to_string(x.numel()) + " elements, but " +
                  to_string(result) + " has " + std::to_string(result.numel()));
  }
  const Value reshaped = x.builder().append1(kOp, {x}, "", result);
  x.builder().note_rearrangement(reshaped, {x, {}});
  return reshaped;
}

Value flatten(Value x) { return reshape(x, {x.numel()}); }

Value transpose(Value x, const Dims& permutation) {
  constexpr std::string_view kOp = "stablehlo.transpose";
  check_size(kOp, "permutation", permutation, x.rank());
  check_dimensions(kOp, "permutation", permutation, x.rank());
  if (std::is_sorted(permutation.begin(), permutation.end())) return x;
  Dims dims;
  for (const int64_t p : permutation) dims.push_back(x.dim(p));
  const Value result =
      x.builder().append1(kOp, {x}, "permutation = " + dense_array(permutation), {x.dtype(), dims});
  x.builder().note_rearrangement(result, {x, permutation});
  return result;
}

Value slice(Value x, const Dims& start, const Dims& limit, const Dims& strides) {
  constexpr std::string_view kOp = "stablehlo.slice";
  const Dims steps = strides.empty() ? Dims(x.dims().size(), 1) : strides;
  check_size(kOp, "start", start, x.rank());
  check_size(kOp, "limit", limit, x.rank());
  check_size(kOp, "strides", steps, x.rank());
  Dims dims(start.size());
  for (size_t i = 0; i < dims.size(); ++i) {
    if (!(0 <= start[i] && start[i] <= limit[i] && limit[i] <= x.dims()[i] && steps[i] > 0)) {
      fail(kOp, "expected 0 <= start <= limit <= size and stride > 0, got start " +
                    to_string(start) + ", limit " + to_string(limit) + ", strides " +
                    to_string(steps) + " for " + to_string(x.type()));
    }
    dims[i] = (limit[i] - start[i] + steps[i] - 1) / steps[i];
  }
  if (dims == x.dims()) return x;
  return x.builder().append1(kOp, {x},
                             "start_indices = " + dense_array(start) + ", limit_indices = " +
                                 dense_array(limit) + ", strides = " + dense_array(steps),
                             {x.dtype(), dims});
}

Value slice_dim(Value x, int64_t dimension, int64_t start, int64_t limit, int64_t stride) {
  check_dimension("slice_dim", "dimension", dimension, x.rank());
  const auto d = static_cast<size_t>(dimension);
  Dims starts(x.dims().size(), 0);
  Dims limits = x.dims();
  Dims strides(x.dims().size(), 1);
  starts[d] = start;
  limits[d] = limit;
  strides[d] = stride;
  return slice(x, starts, limits, strides);
}

namespace {

void check_starts(std::string_view op, const Values& start, int64_t rank) {
  if (static_cast<int64_t>(start.size()) != rank) {
    fail(op, "expected one start index per dimension, " + std::to_string(rank) + ", got " +
                 std::to_string(start.size()));
  }
  for (const Value v : start) {
    if (v.rank() != 0 || !is_integer(v.dtype()) || v.type() != start[0].type()) {
      fail(op, "start indices must be 0-d integers of one type, got " + to_string(types_of(start)));
    }
  }
}

Values with(Values first, const Values& rest) {
  first.insert(first.end(), rest.begin(), rest.end());
  return first;
}

}  // namespace

Value dynamic_slice(Value x, const Values& start, const Dims& sizes) {
  constexpr std::string_view kOp = "stablehlo.dynamic_slice";
  check_starts(kOp, start, x.rank());
  check_size(kOp, "sizes", sizes, x.rank());
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] < 0 || sizes[i] > x.dims()[i]) {
      fail(kOp, "sizes " + to_string(sizes) + " do not fit into " + to_string(x.type()));
    }
  }
  return x.builder().append1(kOp, with({x}, start), "slice_sizes = " + dense_array(sizes),
                             {x.dtype(), sizes});
}

Value dynamic_update_slice(Value x, Value update, const Values& start) {
  constexpr std::string_view kOp = "stablehlo.dynamic_update_slice";
  check_starts(kOp, start, x.rank());
  bool fits = update.dtype() == x.dtype() && update.rank() == x.rank();
  for (int64_t i = 0; fits && i < x.rank(); ++i) fits = update.dim(i) <= x.dim(i);
  if (!fits) {
    fail(kOp, "the update must have the operand's element type and fit into it, got " +
                  to_string(update.type()) + " for " + to_string(x.type()));
  }
  return x.builder().append1(kOp, with({x, update}, start), "", x.type());
}

Value pad(Value x, Value padding_value, const Dims& low, const Dims& high, const Dims& interior) {
  constexpr std::string_view kOp = "stablehlo.pad";
  const Dims inner = interior.empty() ? Dims(x.dims().size(), 0) : interior;
  check_scalar(kOp, "the padding value", padding_value, x.dtype());
  check_size(kOp, "low", low, x.rank());
  check_size(kOp, "high", high, x.rank());
  check_size(kOp, "interior", inner, x.rank());
  Dims dims(low.size());
  for (size_t i = 0; i < dims.size(); ++i) {
    const int64_t size = x.dims()[i];
    dims[i] = low[i] + size + std::max<int64_t>(size - 1, 0) * inner[i] + high[i];
    if (inner[i] < 0 || dims[i] < 0) {
      fail(kOp, "padding low " + to_string(low) + ", high " + to_string(high) + ", interior " +
                    to_string(inner) + " leaves no valid shape of " + to_string(x.type()));
    }
  }
  return x.builder().append1(kOp, {x, padding_value},
                             "edge_padding_low = " + dense_array(low) + ", edge_padding_high = " +
                                 dense_array(high) + ", interior_padding = " + dense_array(inner),
                             {x.dtype(), dims});
}

Value concatenate(const Values& values, int64_t dimension) {
  constexpr std::string_view kOp = "stablehlo.concatenate";
  if (values.empty()) fail(kOp, "expected at least one operand");
  TensorType result = values[0].type();
  check_dimension(kOp, "dimension", dimension, result.rank());
  if (values.size() == 1) return values[0];
  const auto d = static_cast<size_t>(dimension);
  result.dims[d] = 0;
  for (const Value v : values) {
    TensorType expected = v.type();
    if (expected.rank() == result.rank()) expected.dims[d] = result.dims[d];
    if (expected != result) {
      fail(kOp, "operands must agree but in dimension " + std::to_string(dimension) + ", got " +
                    to_string(types_of(values)));
    }
    result.dims[d] += v.dims()[d];
  }
  return values[0].builder().append1(kOp, values, "dimension = " + i64(dimension), result);
}

Value reverse(Value x, const Dims& dimensions) {
  constexpr std::string_view kOp = "stablehlo.reverse";
  check_dimensions(kOp, "dimensions", dimensions, x.rank());
  if (dimensions.empty()) return x;
  return x.builder().append1(kOp, {x}, "dimensions = " + dense_array(dimensions), x.type());
}

Value expand_dim(Value x, int64_t dimension) {
  check_dimension("expand_dim", "dimension", dimension, x.rank() + 1);
  Dims dims = x.dims();
  dims.insert(dims.begin() + dimension, 1);
  return reshape(x, dims);
}

Value squeeze_dim(Value x, int64_t dimension) {
  check_dimension("squeeze_dim", "dimension", dimension, x.rank());
  if (x.dim(dimension) != 1) {
    fail("squeeze_dim", "dimension " + std::to_string(dimension) + " of " + to_string(x.type()) +
                            " must have size 1");
  }
  Dims dims = x.dims();
  dims.erase(dims.begin() + dimension);
  return reshape(x, dims);
}

}  // namespace torch_tpu::stablehlo
