#include <algorithm>
#include <limits>

#include "lowering/indexing.h"
#include "lowering/platform.h"
#include "lowering/scan.h"

namespace torch_tpu::lowering {

namespace sh = stablehlo;

namespace {

// 32-bit positions wherever they suffice: accelerators emulate 64-bit arithmetic.
ElementType position_type(const Dims& operand) {
  const bool small = std::all_of(operand.begin(), operand.end(), [](int64_t size) {
    return size <= std::numeric_limits<int32_t>::max();
  });
  return small ? ElementType::kS32 : ElementType::kS64;
}

void require_integers(Value index) {
  if (!sh::is_integer(index.dtype()) && !sh::is_bool(index.dtype())) {
    throw InvalidArgument("tensors used as indices must be long, int, byte or bool tensors",
                          InvalidArgument::Kind::kIndex);
  }
  if (!sh::is_integer(index.dtype()) || index.dtype() == ElementType::kU8) {
    throw Unsupported("indexing by a mask: the result's shape depends on the data");
  }
}

Value wrapped(Value index, int64_t size) {
  const Value zero = sh::full_like(index, 0);
  return sh::select(sh::lt(index, zero), sh::add(index, sh::full_like(index, size)), index);
}

// Whether `a` is kept against `b`. Spelt out because NaN must win, and compilers for CPUs let
// maximum and minimum drop it.
Value wins(Value a, Value b, sh::Direction direction) {
  const Value kept = sh::compare(a, b, direction);
  return sh::is_float(a.dtype()) ? sh::or_(kept, sh::ne(a, a)) : kept;
}

sh::Region region(Merge merge) {
  return [merge](const Values& v) -> Values {
    const bool boolean = sh::is_bool(v[0].dtype());
    switch (merge) {
      case Merge::kAssign:
        return {v[1]};
      case Merge::kAdd:
        return {boolean ? sh::or_(v[0], v[1]) : sh::add(v[0], v[1])};
      case Merge::kMultiply:
        return {boolean ? sh::and_(v[0], v[1]) : sh::multiply(v[0], v[1])};
      case Merge::kMax:
        return {sh::select(wins(v[0], v[1], sh::Direction::kGe), v[0], v[1])};
      case Merge::kMin:
        return {sh::select(wins(v[0], v[1], sh::Direction::kLe), v[0], v[1])};
    }
    throw std::logic_error("put_elements: unknown way to merge");
  };
}

Dims all_but(int64_t rank, int64_t dim) {
  Dims out;
  for (int64_t d = 0; d < rank; ++d) {
    if (d != dim) out.push_back(d);
  }
  return out;
}

// The part of `value` that `dims` covers; dimension `except` stays whole.
Value corner(Value value, const Dims& dims, int64_t except = -1) {
  Dims limit = value.dims();
  for (size_t d = 0; d < limit.size(); ++d) {
    if (static_cast<int64_t>(d) != except) limit[d] = std::min(limit[d], dims[d]);
  }
  if (limit == value.dims()) return value;
  return sh::slice(value, Dims(limit.size(), 0), limit);
}

Value along_positions(Value index, const Dims& operand) {
  return sh::expand_dim(sh::convert(index, position_type(operand)), index.rank());
}

// What a scatter takes, with a second index that is out of range and so passed over. XLA makes
// one single index a dynamic_update_slice, and its CPU compiler writes that again for everybody who
// reads the result, each time into a copy: of a key-value cache of a decoder, four a step. Several
// indices stay a scatter, which happens once and in place.
struct Put {
  Value starts, updates;
  Dims window_dims;
};

Put with_idle_index(Put put) {
  if (put.starts.rank() == 1) {
    put.starts = sh::expand_dim(put.starts, 0);
    put.updates = sh::expand_dim(put.updates, 0);
    for (int64_t& d : put.window_dims) ++d;
  }
  int64_t along = 0;
  while (std::find(put.window_dims.begin(), put.window_dims.end(), along) !=
         put.window_dims.end()) {
    ++along;
  }
  const Value nowhere = sh::full_like(put.starts, -1);
  return {sh::concatenate({put.starts, nowhere}, 0),
          sh::concatenate({put.updates, put.updates}, along), put.window_dims};
}

bool is_single(const AdvancedIndex& index) {
  return index.starts.numel() == static_cast<int64_t>(index.dims.size());
}

}  // namespace

Value zeros(Builder& builder, ElementType dtype, const Dims& dims) {
  return sh::splat(builder, TensorType{dtype, dims}, 0);
}

Value at_least_1d(Value value) { return value.rank() == 0 ? sh::reshape(value, {1}) : value; }

AdvancedIndex advanced_index(const Dims& operand, const Values& indices, Negative negative) {
  AdvancedIndex out;
  out.operand = operand;
  if (indices.size() > operand.size()) {
    throw InvalidArgument("too many indices for tensor of dimension " +
                              std::to_string(operand.size()) + " (got " +
                              std::to_string(indices.size()) + ")",
                          InvalidArgument::Kind::kIndex);
  }
  std::vector<Dims> shapes;
  for (size_t d = 0; d < indices.size(); ++d) {
    if (!indices[d]) continue;
    require_integers(indices[d]);
    out.dims.push_back(static_cast<int64_t>(d));
    shapes.push_back(indices[d].dims());
  }
  if (out.dims.empty()) {
    out.result = operand;
    return out;
  }
  const Dims shape = sh::broadcast_shapes(shapes);
  const ElementType type = position_type(operand);
  Values columns;
  for (const int64_t d : out.dims) {
    Value index = sh::convert(indices[static_cast<size_t>(d)], type);
    if (negative == Negative::kWrap) index = wrapped(index, operand[static_cast<size_t>(d)]);
    index = sh::broadcast_to(index, shape);
    columns.push_back(sh::expand_dim(index, index.rank()));
  }
  out.starts = columns.size() == 1 ? columns[0] : sh::concatenate(columns, columns[0].rank() - 1);

  // Neighbouring indices leave their shape in their place, others move it to the front.
  const auto first = out.dims.front();
  const bool adjacent = out.dims.back() - first + 1 == static_cast<int64_t>(out.dims.size());
  const int64_t place = adjacent ? first : 0;
  const auto place_shape = [&] { out.result.insert(out.result.end(), shape.begin(), shape.end()); };
  int64_t others = 0;
  for (int64_t d = 0; d < static_cast<int64_t>(operand.size()); ++d) {
    if (std::find(out.dims.begin(), out.dims.end(), d) != out.dims.end()) continue;
    if (others++ == place) place_shape();
    out.window_dims.push_back(static_cast<int64_t>(out.result.size()));
    out.result.push_back(operand[static_cast<size_t>(d)]);
  }
  if (others <= place) place_shape();
  return out;
}

AdvancedIndex dimension_index(const Dims& operand, int64_t dim, Value index, Negative negative) {
  Values indices(static_cast<size_t>(dim + 1));
  indices.back() = index;
  return advanced_index(operand, indices, negative);
}

Value take_elements(Value self, const AdvancedIndex& index) {
  if (index.dims.empty()) return self;
  if (sh::product(index.result) == 0) return zeros(self.builder(), self.dtype(), index.result);
  Dims sizes = index.operand;
  for (const int64_t d : index.dims) {
    if (sizes[static_cast<size_t>(d)] == 0) {
      throw InvalidArgument(
          "index is out of bounds for dimension " + std::to_string(d) + " with size 0",
          InvalidArgument::Kind::kIndex);
    }
    sizes[static_cast<size_t>(d)] = 1;
  }
  return sh::gather(self, index.starts,
                    {.offset_dims = index.window_dims,
                     .collapsed_slice_dims = index.dims,
                     .start_index_map = index.dims,
                     .index_vector_dim = index.starts.rank() - 1},
                    sizes);
}

Value put_elements(Value self, const AdvancedIndex& index, Value updates, Merge merge) {
  // Leading dimensions of size 1 beyond the result's do not count.
  const size_t spare = updates.dims().size() - std::min(updates.dims().size(), index.result.size());
  if (spare > 0) {
    updates = sh::reshape(updates, Dims(updates.dims().begin() + static_cast<std::ptrdiff_t>(spare),
                                        updates.dims().end()));
  }
  const Value wide = sh::broadcast_to(sh::convert(updates, self.dtype()), index.result);
  if (wide.numel() == 0 || self.numel() == 0) return self;
  if (index.dims.empty()) return region(merge)({self, wide})[0];
  Put put{index.starts, wide, index.window_dims};
  const bool small = wide.numel() <= self.numel() / 4;
  if (CompilingFor::platform() == Platform::kCpu && merge == Merge::kAssign && small &&
      is_single(index)) {
    put = with_idle_index(put);
  }
  return sh::scatter(self, put.starts, put.updates,
                     {.update_window_dims = put.window_dims,
                      .inserted_window_dims = index.dims,
                      .scatter_dims_to_operand_dims = index.dims,
                      .index_vector_dim = put.starts.rank() - 1},
                     region(merge));
}

Value take_along(Value self, int64_t dim, Value index) {
  if (index.numel() == 0) return zeros(self.builder(), self.dtype(), index.dims());
  const Value flat_index = at_least_1d(index);
  const Value operand = corner(at_least_1d(self), flat_index.dims(), dim);
  const Dims batch = all_but(operand.rank(), dim);
  const Value out = sh::gather(operand, along_positions(flat_index, operand.dims()),
                               {.offset_dims = {},
                                .collapsed_slice_dims = {dim},
                                .operand_batching_dims = batch,
                                .start_indices_batching_dims = batch,
                                .start_index_map = {dim},
                                .index_vector_dim = operand.rank()},
                               Dims(static_cast<size_t>(operand.rank()), 1));
  return sh::reshape(out, index.dims());
}

Value put_along(Value self, int64_t dim, Value index, Value src, Merge merge) {
  if (index.numel() == 0 || self.numel() == 0) return self;
  const Value flat_index = at_least_1d(index);
  const Value whole = at_least_1d(self);
  const Value operand = corner(whole, flat_index.dims(), dim);
  const Value updates = corner(at_least_1d(sh::convert(src, self.dtype())), flat_index.dims());
  const Dims batch = all_but(operand.rank(), dim);
  Value out = sh::scatter(operand, along_positions(flat_index, operand.dims()), updates,
                          {.update_window_dims = {},
                           .inserted_window_dims = {dim},
                           .input_batching_dims = batch,
                           .scatter_indices_batching_dims = batch,
                           .scatter_dims_to_operand_dims = {dim},
                           .index_vector_dim = operand.rank()},
                          region(merge));
  if (out.dims() != whole.dims()) {
    const Value origin = sh::scalar(self.builder(), ElementType::kS32, 0);
    out = sh::dynamic_update_slice(whole, out, Values(static_cast<size_t>(out.rank()), origin));
  }
  return sh::reshape(out, self.dims());
}

Value identity(Builder& builder, const TensorType& type, Merge merge) {
  switch (merge) {
    case Merge::kMax:
      return sh::lowest(builder, type);
    case Merge::kMin:
      return sh::highest(builder, type);
    case Merge::kMultiply:
      return sh::splat(builder, type, 1);
    default:
      return zeros(builder, type.dtype, type.dims);
  }
}

Value segment_of(Value starts, int64_t count) {
  // One less than the number of starts at or before the position.
  const Dims positions{count};
  const Value none = zeros(starts.builder(), ElementType::kS32, positions);
  const Value one = sh::scalar(starts.builder(), ElementType::kS32, 1);
  const Value begun =
      put_elements(none, advanced_index(positions, {starts}, Negative::kAsIs), one, Merge::kAdd);
  const Value sums = running_sum(begun, 0);
  return sh::subtract(sums, sh::full_like(sums, 1));
}

}  // namespace torch_tpu::lowering
