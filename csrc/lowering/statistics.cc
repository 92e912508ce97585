// Variance, standard deviation, histogram.
#include "lowering/expression.h"
#include "lowering/promotion.h"
#include "lowering/reduction.h"

namespace torch_tpu::lowering {

namespace sh = stablehlo;

Moments moments_over(Value value, const Dims& dims, Value correction) {
  const Value mean = mean_over(value, dims);
  const Value centred = sh::subtract(value, spread(mean, value.dims(), dims));
  const Value squares = sum_over(sh::multiply(centred, centred), dims);
  const Value zero = sh::scalar(value.builder(), value.dtype(), 0.0);
  Value count = constant_like(zero, static_cast<double>(reduced_size(value.dims(), dims)));
  if (correction) count = sh::maximum(sh::subtract(count, correction), zero);
  return {sh::divide(squares, sh::broadcast_to(count, squares.dims())), mean};
}

namespace {

// The variance of complex numbers is the sum of the variances of their parts.
Moments moments(const Call& call, Value x, const Dims& dims) {
  const Value correction = call.number_or("correction", 1, sh::real_type(x.dtype()));
  if (!sh::is_complex(x.dtype())) return moments_over(x, dims, correction);
  const Moments re = moments_over(sh::real(x), dims, correction);
  const Moments im = moments_over(sh::imag(x), dims, correction);
  return {sh::add(re.variance, im.variance), sh::complex(re.mean, im.mean)};
}

template <bool root, bool with_mean>
Values variance_rule(Call& call) {
  const Value x = convert_halves(call.tensor("self"));
  if (!sh::is_float(x.dtype()) && !sh::is_complex(x.dtype())) {
    throw Unsupported(call.op() + ": integers");
  }
  const Dims dims = reduced_dims(call, x.rank());
  const Moments m = moments(call, x, dims);
  Values results{root ? sh::sqrt(m.variance) : m.variance};
  if (with_mean) results.push_back(m.mean);
  if (call.boolean("keepdim")) {
    for (Value& v : results) v = keep_dims(v, x.dims(), dims);
  }
  return results;
}

Values histc(Call& call) {
  Value x = convert_halves(sh::flatten(call.tensor("self")));
  // Integers, which accelerators take and the CPU does not, are counted exactly in float64.
  if (sh::is_integer(x.dtype())) x = sh::convert(x, ElementType::kF64);
  if (!sh::is_float(x.dtype())) throw Unsupported("histc: not real floating point");
  Builder& b = call.builder();
  const ElementType t = x.dtype();
  const int64_t bins = call.integer("bins");
  if (bins <= 0) throw Unsupported("histc: no bins");
  if (x.numel() == 0) return {sh::splat(b, TensorType{t, {bins}}, 0.0)};

  // Equal limits ask for the data's own; equal data gets a bin width of its own.
  Value low = call.number("min", t), high = call.number("max", t);
  const Value own = sh::eq(low, high);
  low = sh::select(own, sh::reduce_min(x, {0}), low);
  high = sh::select(own, sh::reduce_max(x, {0}), high);
  const Value flat = sh::eq(low, high), one = sh::scalar(b, t, 1.0);
  low = sh::select(flat, sh::subtract(low, one), low);
  high = sh::select(flat, sh::add(high, one), high);

  const auto all = [&](Value v) { return sh::broadcast_to(v, x.dims()); };
  const Value scaled = sh::divide(
      sh::multiply(sh::subtract(x, all(low)), constant_like(x, static_cast<double>(bins))),
      all(sh::subtract(high, low)));
  const Value inside = sh::and_(sh::ge(x, all(low)), sh::le(x, all(high)));
  const TensorType index{ElementType::kS32, x.dims()};
  const Value bin = sh::minimum(sh::convert(scaled, index.dtype), sh::splat(b, index, bins - 1));
  // Elements outside go past the end, where a scatter drops them.
  const Value target = sh::select(inside, bin, sh::splat(b, index, bins));
  const Value zeros = sh::splat(b, TensorType{t, {bins}}, 0.0);
  const sh::ScatterDims dims{.update_window_dims = {},
                             .inserted_window_dims = {0},
                             .scatter_dims_to_operand_dims = {0},
                             .index_vector_dim = 1};
  return {sh::scatter(zeros, sh::expand_dim(target, 1), constant_like(x, 1), dims,
                      [](const Values& v) { return Values{sh::add(v[0], v[1])}; })};
}

}  // namespace

void register_statistics(Registry& r) {
  r.add("aten::var", variance_rule<false, false>);
  r.add("aten::std", variance_rule<true, false>);
  r.add("aten::var_mean", variance_rule<false, true>);
  r.add("aten::std_mean", variance_rule<true, true>);
  r.add("aten::histc", histc);
}

}  // namespace torch_tpu::lowering
