// Matrix products: mm, bmm, addmm and their relatives.
#include "lowering/contraction.h"
#include "lowering/families.h"
#include "lowering/grouped_matmul.h"
#include "lowering/joined_rows.h"
#include "lowering/promotion.h"

namespace torch_tpu::lowering {

using namespace stablehlo;

namespace {

bool is_one(const Call& call, std::string_view name) {
  return !call.has(name) || call.is_known(name, 1);
}

Value scaled(const Call& call, Value value, std::string_view factor) {
  if (is_one(call, factor)) return value;
  return multiply(value, broadcast_to(call.number(factor, value.dtype()), value.dims()));
}

// beta * self + alpha * product. A zero beta ignores self, NaN included.
Value affine(const Call& call, Value joined) {
  Value product = scaled(call, rows_apart(joined), "alpha");
  if (!call.is_known("beta", 0)) {
    Value self = call.tensor("self");
    if (product.rank() > joined.rank() && self.rank() == 2) {
      self = reshape(broadcast_to(self, joined.dims()), product.dims());
    }
    self = as(self, product.dtype(), product.dims());
    product = add(scaled(call, self, "beta"), product);
  }
  return reshape(product, joined.dims());
}

Values mm(Call& call) { return {batched_matmul(call.tensor("self"), call.tensor("mat2"))}; }

Values addmm(Call& call) {
  return {affine(call, batched_matmul(call.tensor("mat1"), call.tensor("mat2")))};
}

Values baddbmm(Call& call) {
  return {affine(call, batched_matmul(call.tensor("batch1"), call.tensor("batch2")))};
}

// Sums over the batch: one dot that contracts it together with the inner dimension.
Values addbmm(Call& call) {
  const DotDims dims{.lhs_contracting = {0, 2}, .rhs_contracting = {0, 1}};
  return {affine(call, dot(call.tensor("batch1"), call.tensor("batch2"), dims))};
}

Value matrix_vector(Value matrix, Value vector) {
  return dot(matrix, vector, {.lhs_contracting = {1}, .rhs_contracting = {0}});
}

Values mv(Call& call) { return {matrix_vector(call.tensor("self"), call.tensor("vec"))}; }

Values addmv(Call& call) {
  return {affine(call, matrix_vector(call.tensor("mat"), call.tensor("vec")))};
}

Values inner(Value lhs, Value rhs) {
  return {dot(lhs, rhs, {.lhs_contracting = {0}, .rhs_contracting = {0}})};
}

Values dot_rule(Call& call) { return inner(call.tensor("self"), call.tensor("tensor")); }

Values vdot(Call& call) {
  Value self = call.tensor("self");
  if (is_complex(self.dtype())) self = complex(real(self), negate(imag(self)));
  return inner(self, call.tensor("other"));
}

Values addr(Call& call) {
  const ElementType type = compute_type(result_type(call, {"self", "vec1", "vec2"}));
  const Dims dims = {call.tensor("vec1").dim(0), call.tensor("vec2").dim(0)};
  const Value rows = broadcast_in_dim(convert(call.tensor("vec1"), type), dims, {0});
  const Value columns = broadcast_in_dim(convert(call.tensor("vec2"), type), dims, {1});
  if (!is_bool(type)) return {affine(call, multiply(rows, columns))};
  // For bool, + is or and * is and.
  Value product = and_(rows, columns);
  if (!is_one(call, "alpha")) product = and_(product, as(call.number("alpha", type), type, dims));
  if (call.is_known("beta", 0)) return {product};
  Value self = as(call.tensor("self"), type, dims);
  if (!is_one(call, "beta")) self = and_(self, as(call.number("beta", type), type, dims));
  return {or_(self, product)};
}

Values addmm_activation(Call& call) {
  const Value x = addmm(call)[0];
  if (!call.boolean("use_gelu")) return {maximum(x, full_like(x, 0.0))};
  const Value half = full_like(x, 0.5);
  const Value cdf = add(half, multiply(half, erf(multiply(x, full_like(x, 0.7071067811865476)))));
  return {multiply(x, cdf)};
}

// The scales are per tensor (one element), per row of self or per column of mat2.
Value scale_operand(Value scale, const Dims& dims) {
  const Value value = convert(scale, ElementType::kF32);
  return broadcast_to(value.numel() == 1 ? reshape(value, {}) : value, dims);
}

Values scaled_product(Call& call, Value scale_a, Value scale_b) {
  const Value self = convert(call.tensor("self"), ElementType::kF32);
  const Value mat2 = convert(call.tensor("mat2"), ElementType::kF32);
  const Dims dims = {self.dim(0), mat2.dim(1)};
  const auto check = [](Value scale, const Dims& by_line) {
    if (scale.numel() == 1 || (scale.dims() == by_line && is_float(scale.dtype()))) return;
    throw Unsupported("_scaled_mm: block-wise scales are not covered");
  };
  check(scale_a, {dims[0], 1});
  check(scale_b, {1, dims[1]});
  Value out = batched_matmul(self, mat2);
  out = multiply(out, multiply(scale_operand(scale_a, dims), scale_operand(scale_b, dims)));
  if (call.has("bias")) out = add(out, as(call.tensor("bias"), out.dtype(), dims));
  const ElementType type = call.dtype("out_dtype").value_or(call.tensor("self").dtype());
  if (call.has("scale_result") && bit_width(type) == 8) {
    out = divide(out, scale_operand(call.tensor("scale_result"), dims));
  }
  return {cast(out, type)};
}

Values scaled_mm(Call& call) {
  return scaled_product(call, call.tensor("scale_a"), call.tensor("scale_b"));
}

// The scales come in lists, since some recipes have two; those covered have one.
Values scaled_mm_v2(Call& call) {
  for (const char* name : {"recipe_a", "recipe_b"}) {
    constexpr int64_t kTensorWise = 0, kRowWise = 1;
    const Dims recipe = call.ints(name);
    if (recipe != Dims{kTensorWise} && recipe != Dims{kRowWise}) {
      throw Unsupported("_scaled_mm_v2: block-wise scales are not covered");
    }
  }
  if (!call.ints("contraction_dim").empty()) {
    throw Unsupported("_scaled_mm_v2: contraction_dim is not covered");
  }
  const Values a = call.tensors("scale_a"), b = call.tensors("scale_b");
  if (a.size() != 1 || b.size() != 1) {
    throw Unsupported("_scaled_mm_v2: one scale per matrix is covered");
  }
  return scaled_product(call, a[0], b[0]);
}

Values grouped_mm(Call& call) {
  const Value self = call.tensor("self");
  Value out = grouped_matmul(self, call.tensor("mat2"), call.tensor_or_empty("offs"));
  if (call.has("bias")) throw Unsupported("_grouped_mm: a bias is not covered");
  return {convert(out, call.dtype("out_dtype").value_or(self.dtype()))};
}

}  // namespace

void register_matmul(Registry& r) {
  r.add("aten::mm", mm);
  r.add("aten::bmm", mm);
  r.add("aten::_int_mm", mm);
  r.add("aten::addmm", addmm);
  r.add("aten::baddbmm", baddbmm);
  r.add("aten::addbmm", addbmm);
  r.add("aten::mv", mv);
  r.add("aten::addmv", addmv);
  r.add("aten::dot", dot_rule);
  r.add("aten::vdot", vdot);
  r.add("aten::addr", addr);
  r.add("aten::_addmm_activation", addmm_activation);
  r.add("aten::_scaled_mm", scaled_mm);
  r.add("aten::_scaled_mm_v2", scaled_mm_v2);
  // Its meta kernel takes bfloat16 alone, as CUDA does; the CPU's takes float32 too.
  r.add("aten::_grouped_mm", grouped_mm, {.own_types = true});
}

}  // namespace torch_tpu::lowering
