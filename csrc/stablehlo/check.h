// Checks the operations share. Every message begins with the operation's name.
#pragma once

#include "stablehlo/builder.h"

namespace torch_tpu::stablehlo {

// Throws BuildError("op: message"); a dialect prefix of `op` is dropped.
[[noreturn]] void fail(std::string_view op, std::string_view message);

// `dimension` must be in [0, rank).
void check_dimension(std::string_view op, std::string_view what, int64_t dimension, int64_t rank);
// In [0, rank) and without repetition.
void check_dimensions(std::string_view op, std::string_view what, const Dims& dimensions,
                      int64_t rank);
// `dims` must have `size` elements.
void check_size(std::string_view op, std::string_view what, const Dims& dims, int64_t size);
bool contains(const Dims& dims, int64_t value);
void check_scalar(std::string_view op, std::string_view what, Value value, ElementType dtype);

std::vector<TensorType> types_of(const Values& values);
std::string to_string(const std::vector<TensorType>& types);
// The 0-d types of the elements of `values`, each repeated `times` in a row.
std::vector<TensorType> scalar_types(const Values& values, int times = 1);
// `region`, with its results checked to be of types `expected`.
Region yielding(std::string_view op, Region region, std::vector<TensorType> expected);

}  // namespace torch_tpu::stablehlo
