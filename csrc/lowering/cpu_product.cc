#include "lowering/cpu_product.h"

#include <algorithm>

#include "lowering/platform.h"

namespace torch_tpu::lowering {

using namespace stablehlo;

namespace {

// Smaller products take a few microseconds either way.
constexpr int64_t kLeastWork = int64_t{1} << 20;  // multiplications

// Of matrices or vectors.
bool is_single_product(const DotOperands& p) {
  return p.lhs.rank() <= 2 && p.rhs.rank() <= 2 && p.dims.lhs_batching.empty() &&
         p.dims.lhs_contracting.size() == 1;
}

// The size of the dimension that is not contracted.
int64_t free_size(Value side, const Dims& contracting) {
  return side.rank() == 1 ? 1 : side.dim(1 - contracting[0]);
}

bool is_reshape(const Builder::Rearrangement* made) { return made && made->permutation.empty(); }
bool is_transpose(const Builder::Rearrangement* made) { return made && !made->permutation.empty(); }

// What a matrix is the transpose of; an empty handle for others.
Value transposed_from(Value matrix) {
  const auto* made = matrix.builder().rearrangement(matrix);
  return is_transpose(made) ? made->operand : Value();
}

// The left side with the rows first; an empty handle when there is none without a transpose.
Value rows_first(const DotOperands& p) {
  return p.dims.lhs_contracting[0] == 0 ? p.lhs : transposed_from(p.lhs);
}

// The leading dimensions of `dims` that hold `rows` elements together, if two or more of them are
// longer than 1; else none.
Dims dims_of_rows(const Dims& dims, int64_t rows) {
  int64_t product = 1;
  size_t n = 0;
  while (n < dims.size() && product < rows) product *= dims[n++];
  const auto end = dims.begin() + static_cast<std::ptrdiff_t>(n);
  const bool divided = std::count_if(dims.begin(), end, [](int64_t d) { return d > 1; }) >= 2;
  return product == rows && divided ? Dims(dims.begin(), end) : Dims();
}

// `matrix` with its rows as two dimensions or more: those of the value that it is a reshape of, if
// it has them (another division of the rows makes the copy slow), else any two.
Value with_divided_rows(Value matrix) {
  const auto* made = matrix.builder().rearrangement(matrix);
  if (is_reshape(made)) {
    Dims dims = dims_of_rows(made->operand.dims(), matrix.dim(0));
    if (!dims.empty()) {
      dims.push_back(matrix.dim(1));
      return dims == made->operand.dims() ? made->operand : reshape(made->operand, dims);
    }
  }
  for (const int64_t factor : {8, 4, 2, 3, 5, 7}) {
    const int64_t rows = matrix.dim(0);
    if (rows % factor == 0 && rows > factor) {
      return reshape(matrix, {factor, rows / factor, matrix.dim(1)});
    }
  }
  return Value();
}

// The product of two sides with the rows first, of which the left one has them divided.
DotOperands over_divided_rows(Value lhs, const DotOperands& product, int64_t columns) {
  const int64_t right = product.dims.rhs_contracting[0];
  Dims dims(lhs.dims().begin(), lhs.dims().end() - 1);
  const auto parts = static_cast<int64_t>(dims.size());
  dims.insert(right == 0 ? dims.end() : dims.begin(), columns);
  DotOperands result{lhs, reshape(product.rhs, dims), {}};
  for (int64_t i = 0; i < parts; ++i) {
    result.dims.lhs_contracting.push_back(i);
    result.dims.rhs_contracting.push_back(i + right);
  }
  return result;
}

DotOperands without_transposes(const DotOperands& product) {
  DotOperands result = product;
  if (const Value matrix = transposed_from(product.lhs)) {
    result.lhs = matrix;
    result.dims.lhs_contracting[0] = 1 - result.dims.lhs_contracting[0];
  }
  if (const Value matrix = transposed_from(product.rhs)) {
    result.rhs = matrix;
    result.dims.rhs_contracting[0] = 1 - result.dims.rhs_contracting[0];
  }
  return result;
}

// The right side of a batch of products with its two last dimensions in the order in which they are
// stored, where it is a transpose, or a reshape of one that joins the dimensions of the batch.
Value as_stored(Value matrices) {
  Builder& b = matrices.builder();
  const auto* made = b.rearrangement(matrices);
  if (is_reshape(made)) {
    const Dims &from = made->operand.dims(), &to = matrices.dims();
    const bool joined = from.size() >= 3 && std::equal(to.end() - 2, to.end(), from.end() - 2);
    made = joined ? b.rearrangement(made->operand) : nullptr;
  }
  if (!is_transpose(made)) return Value();
  Dims permutation = made->permutation;
  const auto last = permutation.end() - 1;
  if (*last > *(last - 1)) return Value();
  std::iter_swap(last - 1, last);
  Dims dims = matrices.dims();
  std::iter_swap(dims.end() - 2, dims.end() - 1);
  return reshape(transpose(made->operand, permutation), dims);
}

bool is_batch_of_products(const DotOperands& p) {
  return p.lhs.rank() == 3 && p.rhs.rank() == 3 && p.dims.lhs_batching == Dims{0} &&
         p.dims.rhs_batching == Dims{0} && p.dims.rhs_contracting.size() == 1;
}

DotOperands batch_for_cpu(const DotOperands& product) {
  const Value stored = as_stored(product.rhs);
  if (!stored) return product;
  DotOperands result = product;
  result.rhs = stored;
  result.dims.rhs_contracting[0] = 3 - product.dims.rhs_contracting[0];
  return result;
}

}  // namespace

DotOperands product_for_cpu(const DotOperands& product) {
  const ElementType type = product.lhs.dtype();
  if (CompilingFor::platform() != Platform::kCpu || !is_float(type) || bit_width(type) > 32) {
    return product;
  }
  if (is_batch_of_products(product)) return batch_for_cpu(product);
  if (!is_single_product(product)) return product;
  const int64_t columns = free_size(product.rhs, product.dims.rhs_contracting);
  if (free_size(product.lhs, product.dims.lhs_contracting) == 1 || columns == 1) {
    return without_transposes(product);
  }
  const Value matrix = rows_first(product);
  if (!matrix || matrix.numel() * columns < kLeastWork) return product;
  const Value lhs = with_divided_rows(matrix);
  return lhs ? over_divided_rows(lhs, product, columns) : product;
}

}  // namespace torch_tpu::lowering
