// The *_copy operators: what the views of the same name show, as tensors of their own.
#include <algorithm>
#include <limits>

#include "lowering/expression.h"
#include "lowering/indexing.h"
#include "lowering/shape.h"

namespace torch_tpu::lowering {

namespace sh = stablehlo;

namespace {

// A size list in which one entry may be -1: what is left over.
Dims inferred(const Dims& size, int64_t numel) {
  Dims out = size;
  int64_t known = 1;
  int64_t* open = nullptr;
  for (int64_t& s : out) {
    if (s == -1) {
      open = &s;
    } else {
      known *= s;
    }
  }
  if (open && known == 0) {
    throw InvalidArgument(
        "view: expected sizes of which at most one is open, but with a size of 0 "
        "any size fits -1; write it out");
  }
  if (open) *open = numel / known;
  return out;
}

Values same(Call& call) { return {call.tensor("self")}; }

Values view_copy(Call& call) {
  if (call.has("dtype")) throw Unsupported("view_copy: another dtype");
  const Value self = call.tensor("self");
  return {sh::reshape(self, inferred(call.ints("size"), self.numel()))};
}

Values expand_copy(Call& call) {
  const Value self = call.tensor("self");
  Dims size = call.ints("size");
  const size_t extra = size.size() - self.dims().size();
  for (size_t i = extra; i < size.size(); ++i) {
    if (size[i] == -1) size[i] = self.dims()[i - extra];
  }
  return {sh::broadcast_to(self, size)};
}

Values permute_copy(Call& call) {
  const Value self = call.tensor("self");
  Dims dims = call.ints("dims");
  for (int64_t& d : dims) d = wrap_dim(d, self.rank());
  return {permuted(self, dims)};
}

Value swapped(Value v, int64_t a, int64_t b) {
  Dims order;
  for (int64_t d = 0; d < v.rank(); ++d) order.push_back(d == a ? b : d == b ? a : d);
  return permuted(v, order);
}

Values transpose_copy(Call& call) {
  const Value self = call.tensor("self");
  return {swapped(self, wrap_dim(call.integer("dim0"), self.rank()),
                  wrap_dim(call.integer("dim1"), self.rank()))};
}

Values t_copy(Call& call) {
  const Value self = call.tensor("self");
  return {self.rank() < 2 ? self : swapped(self, 0, 1)};
}

Values squeeze_copy(Call& call) {
  const Value self = call.tensor("self");
  Dims dims = call.ints("dim");
  const bool all = !call.has("dim");
  for (int64_t& d : dims) d = wrap_dim(d, self.rank());
  Dims kept;
  for (int64_t d = 0; d < self.rank(); ++d) {
    const bool named = all || std::find(dims.begin(), dims.end(), d) != dims.end();
    if (!named || self.dim(d) != 1) kept.push_back(self.dim(d));
  }
  return {sh::reshape(self, kept)};
}

Values unsqueeze_copy(Call& call) {
  const Value self = call.tensor("self");
  return {sh::expand_dim(self, wrap_dim(call.integer("dim"), self.rank() + 1))};
}

Values select_copy(Call& call) {
  const Value self = call.tensor("self");
  const int64_t dim = wrap_dim(call.integer("dim"), self.rank());
  const int64_t index = call.integer("index");
  const int64_t at = index < 0 ? index + self.dim(dim) : index;
  return {sh::squeeze_dim(sh::slice_dim(self, dim, at, at + 1), dim)};
}

Values slice_copy(Call& call) {
  const Value self = call.tensor("self");
  const int64_t dim = wrap_dim(call.integer("dim"), self.rank());
  const int64_t size = self.dim(dim);
  const auto place = [&](std::string_view name, int64_t otherwise) {
    const int64_t at = call.integer_or(name, otherwise);
    return std::clamp<int64_t>(at < 0 ? at + size : at, 0, size);
  };
  const int64_t start = place("start", 0);
  const int64_t end = std::max(start, place("end", std::numeric_limits<int64_t>::max()));
  return {sh::slice_dim(self, dim, start, end, call.integer("step"))};
}

Values narrow_copy(Call& call) {
  const Value self = call.tensor("self");
  const int64_t dim = wrap_dim(call.integer("dim"), self.rank());
  const int64_t given = call.integer("start");
  const int64_t start = given < 0 ? given + self.dim(dim) : given;
  return {sh::slice_dim(self, dim, start, start + call.integer("length"))};
}

Values split_with_sizes_copy(Call& call) {
  const Value self = call.tensor("self");
  const int64_t dim = wrap_dim(call.integer("dim"), self.rank());
  Values parts;
  int64_t start = 0;
  for (const int64_t size : call.ints("split_sizes")) {
    parts.push_back(sh::slice_dim(self, dim, start, start + size));
    start += size;
  }
  return parts;
}

Values split_copy(Call& call) {
  const Value self = call.tensor("self");
  const int64_t dim = wrap_dim(call.integer("dim"), self.rank());
  const int64_t size = call.integer("split_size");
  if (size == 0) return {self};
  Values parts;
  for (int64_t start = 0; start < std::max<int64_t>(self.dim(dim), 1); start += size) {
    parts.push_back(sh::slice_dim(self, dim, start, std::min(start + size, self.dim(dim))));
  }
  return parts;
}

Values unbind_copy(Call& call) {
  const Value self = call.tensor("self");
  const int64_t dim = wrap_dim(call.integer("dim"), self.rank());
  Values parts;
  for (int64_t i = 0; i < self.dim(dim); ++i) {
    parts.push_back(sh::squeeze_dim(sh::slice_dim(self, dim, i, i + 1), dim));
  }
  return parts;
}

Values unfold_copy(Call& call) {
  const Value self = call.tensor("self");
  if (self.rank() == 0) return {sh::reshape(self, {call.integer("size")})};
  const int64_t dim = wrap_dim(call.integer("dimension"), self.rank());
  const int64_t size = call.integer("size"), step = call.integer("step");
  const int64_t windows = (self.dim(dim) - size) / step + 1;
  const TensorType type{ElementType::kS32, {windows, size}};
  const Value at = sh::iota(call.builder(), type, 0) * static_cast<double>(step) +
                   sh::iota(call.builder(), type, 1);
  const Value taken = take_elements(self, dimension_index(self.dims(), dim, at, Negative::kAsIs));
  return {move_dim(taken, dim + 1, taken.rank() - 1)};
}

Values view_as_real_copy(Call& call) {
  const Value self = call.tensor("self");
  return {sh::concatenate(
      {sh::expand_dim(sh::real(self), self.rank()), sh::expand_dim(sh::imag(self), self.rank())},
      self.rank())};
}

Values view_as_complex_copy(Call& call) {
  const Value self = call.tensor("self");
  const int64_t last = self.rank() - 1;
  if (last < 0 || self.dim(last) != 2) throw Unsupported("view_as_complex_copy: not pairs");
  const auto part = [&](int64_t i) {
    return sh::squeeze_dim(sh::slice_dim(self, last, i, i + 1), last);
  };
  return {sh::complex(part(0), part(1))};
}

Values conj_copy(Call& call) {
  const Value self = call.tensor("self");
  if (!sh::is_complex(self.dtype())) return {self};
  return {sh::complex(sh::real(self), sh::negate(sh::imag(self)))};
}

Values neg_copy(Call& call) { return {sh::negate(call.tensor("self"))}; }

}  // namespace

void register_view_copies(Registry& r) {
  for (const char* op : {"aten::alias_copy", "aten::detach_copy", "aten::lift_fresh_copy"}) {
    r.add(op, same);
  }
  // The meta kernel refuses what is no view of its input; a copy can be made of it all the same.
  r.add("aten::view_copy", view_copy, {.own_types = true});
  r.add("aten::_reshape_copy", view_copy);
  r.add("aten::_reshape_alias_copy", view_copy);
  r.add("aten::expand_copy", expand_copy);
  r.add("aten::permute_copy", permute_copy);
  r.add("aten::transpose_copy", transpose_copy);
  r.add("aten::t_copy", t_copy);
  r.add("aten::squeeze_copy", squeeze_copy);
  r.add("aten::unsqueeze_copy", unsqueeze_copy);
  r.add("aten::select_copy", select_copy);
  r.add("aten::slice_copy", slice_copy);
  r.add("aten::narrow_copy", narrow_copy);
  r.add("aten::split_with_sizes_copy", split_with_sizes_copy);
  r.add("aten::split_copy", split_copy);
  r.add("aten::unbind_copy", unbind_copy);
  r.add("aten::unfold_copy", unfold_copy);
  r.add("aten::view_as_real_copy", view_as_real_copy);
  r.add("aten::view_as_complex_copy", view_as_complex_copy);
  r.add("aten::_conj_copy", conj_copy);
  r.add("aten::_neg_view_copy", neg_copy);
}

}  // namespace torch_tpu::lowering
