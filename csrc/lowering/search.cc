// Where values are in a sorted sequence, and whether they are in a set.
#include "lowering/expression.h"
#include "lowering/promotion.h"
#include "lowering/reduction.h"
#include "lowering/sorting.h"

namespace torch_tpu::lowering {

namespace sh = stablehlo;

namespace {

// Up to this length all elements are compared; above, the sequence is bisected.
constexpr int64_t kCompareAll = 512;

Dims without_last(const Dims& dims) { return Dims(dims.begin(), dims.end() - 1); }

// sequence [n] or [B, n], positions [m] or [B, m] -> the elements there, like positions.
Value elements_at(Value sequence, Value positions) {
  const int64_t rank = sequence.rank();
  sh::GatherDims dims{.offset_dims = {},
                      .collapsed_slice_dims = {rank - 1},
                      .start_index_map = {rank - 1},
                      .index_vector_dim = positions.rank()};
  if (rank == 2) {
    dims.operand_batching_dims = {0};
    dims.start_indices_batching_dims = {0};
  }
  return sh::gather(sequence, sh::expand_dim(positions, positions.rank()), dims,
                    Dims(static_cast<size_t>(rank), 1));
}

// Whether the insertion point of `value` lies behind `element`.
Value goes_behind(Value element, Value value, bool right) {
  return sh::not_(right ? sh::gt(element, value) : sh::ge(element, value));
}

}  // namespace

Value count_before(Value sequence, Value values, bool right) {
  Builder& b = sequence.builder();
  const int64_t n = sequence.dim(sequence.rank() - 1);
  const TensorType type{ElementType::kS32, values.dims()};
  if (n == 0 || values.numel() == 0) return sh::splat(b, type, int64_t{0});
  if (n <= kCompareAll) {
    Dims pairs = values.dims();
    pairs.push_back(n);
    const Value elements =
        sequence.rank() == 1
            ? sh::broadcast_to(sequence, pairs)
            : sh::broadcast_to(sh::expand_dim(sequence, sequence.rank() - 1), pairs);
    const int64_t last = values.rank();
    const Value behind = goes_behind(elements, spread(values, pairs, {last}), right);
    return sum_over(sh::convert(behind, ElementType::kS32), {last});
  }
  Value start = sh::splat(b, type, int64_t{0}), end = sh::splat(b, type, n);
  const Value one = sh::splat(b, type, int64_t{1});
  for (int64_t left = n; left > 0; left /= 2) {
    const Value middle = sh::add(start, sh::shift_right_arithmetic(sh::subtract(end, start), one));
    const Value probe = sh::minimum(middle, sh::splat(b, type, n - 1));
    const Value behind = goes_behind(elements_at(sequence, probe), values, right);
    const Value open = sh::lt(start, end);
    start = sh::select(sh::and_(open, behind), sh::add(middle, one), start);
    end = sh::select(sh::and_(open, sh::not_(behind)), middle, end);
  }
  return start;
}

namespace {

Value tensor_or_number(const Call& call, std::string_view name, ElementType dtype) {
  const Argument* arg = call.find(name);
  return arg && std::holds_alternative<TensorArgument>(*arg) ? sh::convert(call.tensor(name), dtype)
                                                             : call.number(name, dtype);
}

// `sequence` of rank 1 serves all values; otherwise their leading dimensions agree.
Value search(Value sequence, Value values, bool right) {
  if (sequence.rank() == 1) {
    return sh::reshape(count_before(sequence, sh::flatten(values), right), values.dims());
  }
  const Dims batch = without_last(sequence.dims());
  if (values.rank() != sequence.rank() || without_last(values.dims()) != batch) {
    throw Unsupported("searchsorted: shapes that do not fit");
  }
  const int64_t rows = sh::product(batch);
  const auto as_rows = [&](Value v) { return sh::reshape(v, {rows, v.dim(v.rank() - 1)}); };
  return sh::reshape(count_before(as_rows(sequence), as_rows(values), right), values.dims());
}

void require_real(const Call& call, ElementType dtype) {
  if (sh::is_complex(dtype)) throw Unsupported(call.op() + ": complex numbers");
}

Values searchsorted(Call& call) {
  const ElementType dtype = result_type(call, {"sorted_sequence", "self"});
  require_real(call, dtype);
  Value sequence = sh::convert(call.tensor("sorted_sequence"), dtype);
  if (sequence.rank() == 0) throw Unsupported("searchsorted: a 0-d sequence");
  if (call.has("sorter") && sequence.numel() > 0) {
    const Value order = sh::convert(call.tensor("sorter"), ElementType::kS32);
    const Dims rows{sh::product(without_last(sequence.dims())), sequence.dim(sequence.rank() - 1)};
    sequence = sh::reshape(elements_at(sh::reshape(sequence, rows), sh::reshape(order, rows)),
                           sequence.dims());
  }
  const bool right = call.boolean("right") || call.string("side", "left") == "right";
  return {search(sequence, tensor_or_number(call, "self", dtype), right)};
}

Values bucketize(Call& call) {
  const ElementType dtype = result_type(call, {"self", "boundaries"});
  require_real(call, dtype);
  const Value boundaries = sh::convert(call.tensor("boundaries"), dtype);
  if (boundaries.rank() != 1) throw Unsupported("bucketize: boundaries that are not 1-d");
  return {search(boundaries, tensor_or_number(call, "self", dtype), call.boolean("right"))};
}

// Tensor_Tensor, Tensor_Scalar and Scalar_Tensor.
Values isin(Call& call) {
  const char* const one = call.find("elements") ? "elements" : "element";
  const char* const many = call.find("test_elements") ? "test_elements" : "test_element";
  const ElementType dtype = result_type(call, {one, many});
  const Value elements = tensor_or_number(call, one, dtype);
  const Value x = sh::flatten(elements);
  const Value set = sh::flatten(tensor_or_number(call, many, dtype));
  const int64_t n = set.numel();
  Value found;
  if (n == 0 || x.numel() == 0) {
    found = sh::splat(call.builder(), TensorType{ElementType::kPred, x.dims()}, false);
  } else if (n <= kCompareAll || sh::is_complex(dtype)) {
    const Dims pairs{x.numel(), n};
    found = any_over(sh::eq(spread(x, pairs, {1}), spread(set, pairs, {0})), {1});
  } else {
    const Value sorted = sorted_along(set, 0, false).values;
    const Value place = count_before(sorted, x, false);
    found = sh::eq(elements_at(sorted, sh::minimum(place, constant_like(place, n - 1))), x);
  }
  if (call.boolean("invert")) found = sh::not_(found);
  return {sh::reshape(found, elements.dims())};
}

}  // namespace

void register_search(Registry& r) {
  r.add("aten::searchsorted", searchsorted);
  r.add("aten::bucketize", bucketize);
  r.add("aten::isin", isin);
}

}  // namespace torch_tpu::lowering
