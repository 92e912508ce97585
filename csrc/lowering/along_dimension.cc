#include "lowering/along_dimension.h"

#include <algorithm>

#include "lowering/contraction.h"

namespace torch_tpu::lowering {

using namespace stablehlo;

namespace {

// More pieces than this and one gather (or product) is the smaller program.
constexpr size_t kMaxRuns = 8;

// indices[k] = first + k * step, for `length` outputs.
struct Run {
  int64_t first = 0, step = 1, length = 0;
};

std::vector<Run> runs(const Dims& indices) {
  std::vector<Run> out;
  for (size_t i = 0; i < indices.size();) {
    Run run{indices[i], 1, 1};
    if (i + 1 < indices.size()) {
      run.step = indices[i + 1] - indices[i];
      while (i + run.length < indices.size() &&
             indices[i + run.length] - indices[i + run.length - 1] == run.step) {
        ++run.length;
      }
    }
    out.push_back(run);
    i += run.length;
  }
  return out;
}

Value take_run(Value x, int64_t dim, const Run& run) {
  if (run.step == 0) {
    Dims dims = x.dims();
    dims[dim] = run.length;
    return broadcast_to(slice_dim(x, dim, run.first, run.first + 1), dims);
  }
  const int64_t last = run.first + (run.length - 1) * run.step;
  const int64_t step = std::abs(run.step);
  const int64_t low = std::min(run.first, last), high = std::max(run.first, last);
  const Value taken = slice_dim(x, dim, low, high + 1, step);
  return run.step < 0 ? reverse(taken, {dim}) : taken;
}

// How often each entry is repeated, when all are repeated equally often from 0 on; else 0.
int64_t repetition(const Dims& indices, int64_t size) {
  if (size == 0 || indices.empty() || indices.size() % size != 0) return 0;
  const int64_t times = static_cast<int64_t>(indices.size()) / size;
  for (size_t i = 0; i < indices.size(); ++i) {
    if (indices[i] != static_cast<int64_t>(i) / times) return 0;
  }
  return times;
}

// Each entry of `dim` becomes `times` of them.
Value repeat(Value x, int64_t dim, int64_t times) {
  Dims wide = x.dims(), flat = x.dims(), mapping;
  wide.insert(wide.begin() + dim + 1, times);
  flat[dim] *= times;
  for (int64_t i = 0; i < x.rank(); ++i) mapping.push_back(i <= dim ? i : i + 1);
  return reshape(broadcast_in_dim(x, wide, mapping), flat);
}

Value sum_blocks(Value x, int64_t dim, int64_t block) {
  Dims split = x.dims();
  split[dim] /= block;
  split.insert(split.begin() + dim + 1, block);
  return reduce_sum(reshape(x, split), {dim + 1});
}

Value gather_along(Value x, int64_t dim, const Dims& indices) {
  GatherDims dims;
  for (int64_t i = 0; i < x.rank(); ++i) {
    if (i != dim) dims.offset_dims.push_back(i);
  }
  dims.collapsed_slice_dims = {dim};
  dims.start_index_map = {dim};
  dims.index_vector_dim = 1;
  Dims sizes = x.dims();
  sizes[dim] = 1;
  const Value where = constant(x.builder(), indices, ElementType::kS32);
  const bool sorted = std::is_sorted(indices.begin(), indices.end());
  return gather(x, where, dims, sizes, sorted);
}

Value zero_of(Value x) { return scalar(x.builder(), x.dtype(), 0); }

Value place_run(Value part, int64_t dim, const Run& run, int64_t size) {
  if (run.step == 0) {
    Dims kept = part.dims();
    kept[dim] = 1;
    const Value sum = reshape(reduce_sum(part, {dim}), kept);
    return pad_along(sum, dim, zero_of(part), run.first, size - run.first - 1);
  }
  const int64_t last = run.first + (run.length - 1) * run.step;
  const int64_t low = std::min(run.first, last), high = std::max(run.first, last);
  if (run.step < 0) part = reverse(part, {dim});
  return pad_along(part, dim, zero_of(part), low, size - high - 1, std::abs(run.step) - 1);
}

// Larger matrices are made on the device from their taps, to keep programs small.
constexpr int64_t kMaxConstant = 4096;
constexpr size_t kMaxTaps = 16;

// Numbers as a constant of a floating or an integer type.
Value numbers(Builder& b, const std::vector<double>& values, const TensorType& type) {
  if (is_float(type.dtype)) return constant(b, values, type);
  return constant(b, Dims(values.begin(), values.end()), type);
}

// [outputs, inputs]
Value matrix_of(Builder& b, ElementType dtype, const Taps& taps) {
  const int64_t outputs = taps.outputs(), inputs = taps.inputs;
  const TensorType type{dtype, {outputs, inputs}};
  if (outputs * inputs <= kMaxConstant || taps.indices.size() > kMaxTaps) {
    std::vector<double> dense(outputs * inputs, 0.0);
    for (size_t k = 0; k < taps.indices.size(); ++k) {
      for (int64_t o = 0; o < outputs; ++o) {
        dense[o * inputs + taps.indices[k][o]] += taps.weights[k][o];
      }
    }
    return numbers(b, dense, type);
  }
  const TensorType index_type{ElementType::kS32, type.dims};
  const Value column = iota(b, index_type, 1);
  const Value zero = splat(b, type, 0);
  Value sum;
  for (size_t k = 0; k < taps.indices.size(); ++k) {
    const Value line = numbers(b, taps.weights[k], TensorType{dtype, {outputs}});
    const Value here = eq(column, vary_along(b, index_type, 0, taps.indices[k]));
    const Value part = select(here, broadcast_in_dim(line, type.dims, {0}), zero);
    sum = sum ? add(sum, part) : part;
  }
  return sum;
}

// Contracts dimension `dim` of x with one of the matrix; the other one takes its place.
Value contract_along(Value x, int64_t dim, Value matrix, int64_t matrix_dim) {
  const Value mixed =
      exact_dot(x, matrix, {.lhs_contracting = {dim}, .rhs_contracting = {matrix_dim}});
  if (dim == x.rank() - 1) return mixed;
  Dims order;
  for (int64_t i = 0; i < x.rank(); ++i) {
    order.push_back(i < dim ? i : i == dim ? x.rank() - 1 : i - 1);
  }
  return transpose(mixed, order);
}

}  // namespace

Value pad_along(Value x, int64_t dim, Value padding_value, int64_t low, int64_t high,
                int64_t interior) {
  if (low == 0 && high == 0 && interior == 0) return x;
  Dims lows(x.rank(), 0), highs(x.rank(), 0), interiors(x.rank(), 0);
  lows[dim] = low;
  highs[dim] = high;
  interiors[dim] = interior;
  return pad(x, padding_value, lows, highs, interiors);
}

Value vary_along(Builder& b, const TensorType& type, int64_t dim, const Dims& values) {
  const TensorType line{type.dtype, {type.dims[dim]}};
  if (is_float(type.dtype)) {
    const std::vector<double> real(values.begin(), values.end());
    return broadcast_in_dim(constant(b, real, line), type.dims, {dim});
  }
  return broadcast_in_dim(constant(b, values, line), type.dims, {dim});
}

Value take_along(Value x, int64_t dim, const Dims& indices) {
  const int64_t size = x.dim(dim);
  if (indices.empty()) return slice_dim(x, dim, 0, 0);
  if (const int64_t times = repetition(indices, size)) {
    return times == 1 ? x : repeat(x, dim, times);
  }
  const std::vector<Run> parts = runs(indices);
  if (parts.size() > kMaxRuns) return gather_along(x, dim, indices);
  Values taken;
  for (const Run& run : parts) taken.push_back(take_run(x, dim, run));
  return taken.size() == 1 ? taken[0] : concatenate(taken, dim);
}

Value spread_along(Value x, int64_t dim, const Dims& indices, int64_t size) {
  Dims dims = x.dims();
  dims[dim] = size;
  if (indices.empty()) return splat(x.builder(), {x.dtype(), dims}, 0);
  if (const int64_t times = repetition(indices, size)) {
    return times == 1 ? x : sum_blocks(x, dim, times);
  }
  const std::vector<Run> parts = runs(indices);
  if (parts.size() <= kMaxRuns) {
    Value sum;
    int64_t at = 0;
    for (const Run& run : parts) {
      const Value placed = place_run(slice_dim(x, dim, at, at + run.length), dim, run, size);
      sum = sum ? add(sum, placed) : placed;
      at += run.length;
    }
    return sum;
  }
  if (std::is_sorted(indices.begin(), indices.end())) {
    Dims starts(size, 0), lengths(size, 0);
    for (int64_t i = 0; i < size; ++i) {
      const auto [from, to] = std::equal_range(indices.begin(), indices.end(), i);
      starts[i] = from - indices.begin();
      lengths[i] = to - from;
    }
    return sum_ranges(x, dim, starts, lengths);
  }
  const std::vector<double> ones(indices.size(), 1.0);
  return mix_back_along(x, dim, {size, {indices}, {ones}});
}

Value sum_ranges(Value x, int64_t dim, const Dims& starts, const Dims& lengths) {
  const int64_t outputs = static_cast<int64_t>(starts.size());
  const int64_t longest = outputs ? *std::max_element(lengths.begin(), lengths.end()) : 0;
  Dims dims = x.dims();
  dims[dim] = outputs;
  if (longest == 0) return splat(x.builder(), {x.dtype(), dims}, 0);
  bool blocks = longest * outputs == x.dim(dim);
  for (int64_t o = 0; o < outputs; ++o) {
    blocks = blocks && lengths[o] == longest && starts[o] == o * longest;
  }
  if (blocks) return longest == 1 ? x : sum_blocks(x, dim, longest);
  Dims indices;
  std::vector<uint8_t> inside;
  for (int64_t o = 0; o < outputs; ++o) {
    for (int64_t k = 0; k < longest; ++k) {
      const bool valid = k < lengths[o];
      inside.push_back(valid);
      indices.push_back(valid ? starts[o] + k
                              : std::clamp<int64_t>(starts[o] + lengths[o] - 1, 0, x.dim(dim) - 1));
    }
  }
  const Value taken = take_along(x, dim, indices);
  const TensorType line{ElementType::kPred, {outputs * longest}};
  const Value mask =
      broadcast_in_dim(constant_bytes(x.builder(), inside.data(), line), taken.dims(), {dim});
  return sum_blocks(select(mask, taken, full_like(taken, 0)), dim, longest);
}

Value mix_along(Value x, int64_t dim, const Taps& taps) {
  return contract_along(x, dim, matrix_of(x.builder(), x.dtype(), taps), 1);
}

Value mix_back_along(Value x, int64_t dim, const Taps& taps) {
  return contract_along(x, dim, matrix_of(x.builder(), x.dtype(), taps), 0);
}

}  // namespace torch_tpu::lowering
