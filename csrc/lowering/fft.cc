// Discrete Fourier transforms.
#include <algorithm>
#include <cmath>

#include "lowering/expression.h"
#include "lowering/linear_algebra.h"

namespace torch_tpu::lowering {

namespace sh = stablehlo;

namespace {

// The compiler transforms at most this many dimensions at once.
constexpr size_t kMostDims = 3;

// ATen's fft_norm_mode.
enum Normalization : int64_t { kNone = 0, kByRootN = 1, kByN = 2 };

Value scaled(Value x, int64_t normalization, double n) {
  if (normalization == kNone || n == 1) return x;
  return x * (normalization == kByN ? 1 / n : 1 / std::sqrt(n));
}

double transform_size(const Dims& shape, const Dims& dims) {
  double n = 1;
  for (const int64_t d : dims) n *= static_cast<double>(shape[static_cast<size_t>(d)]);
  return n;
}

// Applies `transform` with `dims` moved to the end, in their order, and moves them back.
template <typename Transform>
Value at_the_end(Value x, const Dims& dims, const Transform& transform) {
  Dims order, back(x.dims().size());
  for (int64_t d = 0; d < x.rank(); ++d) {
    if (std::find(dims.begin(), dims.end(), d) == dims.end()) order.push_back(d);
  }
  order.insert(order.end(), dims.begin(), dims.end());
  for (size_t i = 0; i < order.size(); ++i) {
    back[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  }
  return sh::transpose(transform(sh::transpose(x, order)), back);
}

// Unnormalized in both directions.
Value complex_transform(Value x, const Dims& dims, bool forward) {
  for (size_t first = 0; first < dims.size(); first += kMostDims) {
    const size_t last = std::min(dims.size(), first + kMostDims);
    const Dims some(dims.begin() + static_cast<int64_t>(first),
                    dims.begin() + static_cast<int64_t>(last));
    Dims length;
    for (const int64_t d : some) length.push_back(x.dim(d));
    const auto kind = forward ? sh::FftType::kFft : sh::FftType::kIfft;
    x = at_the_end(x, some, [&](Value v) { return sh::fft(v, kind, length); });
    if (!forward) x = x * transform_size(x.dims(), some);
  }
  return x;
}

Dims transformed_dims(const Call& call, Value self) {
  Dims dims;  // in the caller's order: the last one is special in real transforms
  for (const int64_t d : call.ints("dim")) dims.push_back(wrap_dim(d, self.rank()));
  return dims;
}

Value checked(const Call& call, bool complex) {
  const Value self = call.tensor("self");
  const ElementType t = self.dtype();
  const bool fits = complex ? sh::is_complex(t) : t == ElementType::kF32 || t == ElementType::kF64;
  if (!fits || self.numel() == 0) throw Unsupported(call.op() + ": this dtype, or no elements");
  return self;
}

Values c2c(Call& call) {
  const Value self = checked(call, true);
  const Dims dims = transformed_dims(call, self);
  return {scaled(complex_transform(self, dims, call.boolean("forward")),
                 call.integer("normalization"), transform_size(self.dims(), dims))};
}

Values r2c(Call& call) {
  const Value self = checked(call, false);
  Dims dims = transformed_dims(call, self);
  const double n = transform_size(self.dims(), dims);
  Value x;
  if (call.boolean("onesided")) {
    const int64_t last = dims.back();
    dims.pop_back();
    x = at_the_end(self, {last},
                   [&](Value v) { return sh::fft(v, sh::FftType::kRfft, {self.dim(last)}); });
  } else {
    x = sh::complex(self, constant_like(self, 0));
  }
  return {scaled(complex_transform(x, dims, true), call.integer("normalization"), n)};
}

Values c2r(Call& call) {
  const Value self = checked(call, true);
  Dims dims = transformed_dims(call, self);
  const int64_t last = dims.back(), size = call.integer("last_dim_size");
  if (self.dim(last) != size / 2 + 1) throw Unsupported("_fft_c2r: the input is not one-sided");
  dims.pop_back();
  const double n = transform_size(self.dims(), dims) * static_cast<double>(size);
  const Value x = at_the_end(complex_transform(self, dims, false), {last}, [&](Value v) {
    return sh::fft(v, sh::FftType::kIrfft, {size}) * static_cast<double>(size);
  });
  return {scaled(x, call.integer("normalization"), n)};
}

}  // namespace

void register_fft(Registry& r) {
  r.add("aten::_fft_c2c", c2c);
  r.add("aten::_fft_r2c", r2c);
  r.add("aten::_fft_c2r", c2r);
}

}  // namespace torch_tpu::lowering
