#include "lowering/sorting.h"

#include <limits>
#include <utility>

#include "lowering/expression.h"
#include "lowering/families.h"
#include "lowering/indexing.h"
#include "lowering/platform.h"
#include "lowering/reduction.h"

namespace torch_tpu::lowering {

namespace sh = stablehlo;

namespace {

// A strict weak order with NaN above everything else.
Value before(Value a, Value b, bool descending) {
  const Value ordered = descending ? sh::gt(a, b) : sh::lt(a, b);
  if (!sh::is_float(a.dtype())) return ordered;
  const Value high = descending ? a : b, low = descending ? b : a;
  return sh::or_(ordered, sh::and_(is_nan(high), sh::not_(is_nan(low))));
}

}  // namespace

Sorted sorted_along(Value value, int64_t dim, bool descending) {
  const int64_t n = value.dim(dim);
  const TensorType index{n <= INT32_MAX ? ElementType::kS32 : ElementType::kS64, value.dims()};
  const Value position = sh::iota(value.builder(), index, dim);
  if (n <= 1 || value.numel() == 0) return {value, position};
  const auto compared = [&]() -> Sorted {
    const Values out = sh::sort({value, position}, dim, /*stable=*/true, [&](const Values& v) {
      return Values{before(v[0], v[1], descending)};
    });
    return {out[0], out[1]};
  };
  if (const auto sorted = sorted_by_packing(value, position, dim, descending, compared)) {
    return *sorted;
  }
  return compared();
}

namespace {

Value ordered_self(const Call& call) {
  const Value self = call.tensor("self");
  if (sh::is_complex(self.dtype())) throw Unsupported(call.op() + ": complex numbers");
  return self;
}

Values results(Value self, Value values, Value indices) {
  indices = sh::convert(indices, ElementType::kS64);
  if (self.rank() > 0) return {values, indices};
  return {sh::reshape(values, {}), sh::reshape(indices, {})};
}

Values sort(Call& call) {
  const Value self = ordered_self(call);
  const Value x = at_least_1d(self);
  const int64_t dim = wrap_dim(call.integer_or("dim", -1), x.rank());
  const Sorted sorted = sorted_along(x, dim, call.boolean("descending"));
  return results(self, sorted.values, sorted.indices);
}

// The compiler's top-k compares bit patterns in the IEEE total order, so with one kind of NaN the
// order is PyTorch's, and with the sign bit flipped it is the reverse.
Value flip_sign(Value x) {
  const Value bits = sh::bitcast_convert(x, sh::bits_type(x.dtype()));
  const int width = sh::bit_width(x.dtype());
  const Value shift = constant_like(bits, width - 1);
  const Value sign = sh::shift_left(constant_like(bits, 1), shift);
  return sh::bitcast_convert(sh::xor_(bits, sign), x.dtype());
}

bool through_float32(ElementType type) { return sh::is_bool(type) || sh::bit_width(type) <= 16; }

Sorted top_of_floats(Value value, int64_t k, bool largest) {
  // Types that fit go through float32, which compilers know best.
  const ElementType type = value.dtype();
  const Value x = through_float32(type) ? sh::convert(value, ElementType::kF32) : value;
  const Value nan = sh::full_like(x, std::numeric_limits<double>::quiet_NaN());
  const Value canonical = sh::select(is_nan(x), nan, x);
  const auto [values, indices] = sh::top_k(largest ? canonical : flip_sign(canonical), k);
  return {sh::convert(largest ? values : flip_sign(values), type), indices};
}

Values topk(Call& call) {
  const Value self = ordered_self(call);
  const Value x = at_least_1d(self);
  const int64_t dim = wrap_dim(call.integer_or("dim", -1), x.rank());
  const int64_t k = call.integer("k");
  const int64_t n = x.dim(dim);
  const bool largest = call.boolean("largest", true);
  if (k < 0 || k > n) throw Unsupported("topk: k is out of range");

  // The CPU's compiler knows the top of float32 only.
  const bool slow = x.dtype() == ElementType::kF64 && CompilingFor::platform() == Platform::kCpu;
  const bool as_floats = (sh::is_float(x.dtype()) && !slow) || through_float32(x.dtype());
  if (!as_floats || k == 0 || x.numel() == 0 || n > INT32_MAX) {
    const Sorted sorted = sorted_along(x, dim, largest);
    return results(self, sh::slice_dim(sorted.values, dim, 0, k),
                   sh::slice_dim(sorted.indices, dim, 0, k));
  }
  if (dim == x.rank() - 1) {
    const Sorted top = top_of_floats(x, k, largest);
    return results(self, top.values, top.indices);
  }
  Dims to_last;
  for (int64_t d = 0; d < x.rank(); ++d) to_last.push_back(d);
  std::swap(to_last[static_cast<size_t>(dim)], to_last.back());
  const Sorted top = top_of_floats(sh::transpose(x, to_last), k, largest);
  return results(self, sh::transpose(top.values, to_last), sh::transpose(top.indices, to_last));
}

}  // namespace

void register_sorting(Registry& r) {
  r.add("aten::sort", sort);
  r.add("aten::topk", topk);
  register_order_statistics(r);
  register_search(r);
  register_histogram(r);
}

}  // namespace torch_tpu::lowering
