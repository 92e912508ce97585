// The exponential of square matrices, by scaling and squaring.
#include <array>
#include <cmath>
#include <limits>

#include "lowering/expression.h"
#include "lowering/linear_algebra.h"
#include "lowering/promotion.h"
#include "lowering/reduction.h"

namespace torch_tpu::lowering {

namespace sh = stablehlo;

namespace {

constexpr int kDegree = 19;  // of the Taylor polynomial: 1 / 20! is below float64's resolution

Value along_batch(Value v, Value like) { return sh::broadcast_in_dim(v, like.dims(), {0}); }

// The Taylor polynomial by powers of x^4: seven products instead of eighteen.
Value taylor(Value x) {
  std::array<double, kDegree + 1> coefficients{1};
  for (int i = 1; i <= kDegree; ++i) coefficients[i] = coefficients[i - 1] / i;
  const Value one = identity_matrices(x.builder(), x.dtype(), {x.dim(0)}, rows(x));
  const Value x2 = matrix_product(x, x), x3 = matrix_product(x2, x), x4 = matrix_product(x2, x2);
  Value sum;
  for (int i = kDegree - 3; i >= 0; i -= 4) {
    const Value part = one * coefficients[i] + x * coefficients[i + 1] + x2 * coefficients[i + 2] +
                       x3 * coefficients[i + 3];
    sum = sum ? part + matrix_product(sum, x4) : part;
  }
  return sum;
}

Values matrix_exp(Call& call) {
  const Value self = call.tensor("self");
  if (self.numel() == 0) return {self};
  const Value a = flat_batch(convert_halves(self));
  if (!sh::is_float(a.dtype()) && !sh::is_complex(a.dtype())) {
    throw Unsupported("linalg_matrix_exp: matrices of " + std::string(sh::name(a.dtype())));
  }

  // e^a = (e^(a / 2^s))^(2^s), with s such that the polynomial serves the type: each squaring costs
  // accuracy.
  const bool wide = sh::bit_width(a.dtype()) >= (sh::is_complex(a.dtype()) ? 128 : 64);
  const double radius = wide ? 1.0 : 3.0;
  const Value norm = max_over(sum_over(sh::abs(a), {1}), {1});
  const Value finite = sh::is_finite(norm);
  const Value exponent = sh::ceil(sh::log(choose(finite, norm, 1.0) / radius) / std::log(2.0));
  const Value squarings = sh::maximum(exponent, constant_like(exponent, 0));
  Value scale = sh::power(constant_like(norm, 0.5), squarings);
  scale = choose(finite, scale, std::numeric_limits<double>::quiet_NaN());
  const Value x = a * along_batch(sh::convert(scale, a.dtype()), a);

  const auto pending = [&](const Values& state) -> Values {
    return {any_over(state[1] > 0.0, {0})};
  };
  const auto square = [&](const Values& state) -> Values {
    const Value more = along_batch(state[1] > 0.0, state[0]);
    return {choose(more, matrix_product(state[0], state[0]), state[0]), state[1] - 1.0};
  };
  return {sh::reshape(sh::while_({taylor(x), squarings}, pending, square)[0], self.dims())};
}

}  // namespace

void register_matrix_exp(Registry& r) { r.add("aten::linalg_matrix_exp", matrix_exp); }

}  // namespace torch_tpu::lowering
