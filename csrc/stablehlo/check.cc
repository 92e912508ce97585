#include "stablehlo/check.h"

#include <algorithm>

namespace torch_tpu::stablehlo {

void fail(std::string_view op, std::string_view message) {
  const size_t dot = op.rfind('.');
  std::string text(dot == std::string_view::npos ? op : op.substr(dot + 1));
  text += ": ";
  text += message;
  throw BuildError(text);
}

void check_dimension(std::string_view op, std::string_view what, int64_t dimension, int64_t rank) {
  if (dimension >= 0 && dimension < rank) return;
  fail(op, std::string(what) + " " + std::to_string(dimension) + " is out of range for rank " +
               std::to_string(rank));
}

void check_dimensions(std::string_view op, std::string_view what, const Dims& dimensions,
                      int64_t rank) {
  for (size_t i = 0; i < dimensions.size(); ++i) {
    check_dimension(op, what, dimensions[i], rank);
    for (size_t j = 0; j < i; ++j) {
      if (dimensions[i] == dimensions[j]) {
        fail(op, std::string(what) + " " + to_string(dimensions) + " repeats a dimension");
      }
    }
  }
}

void check_size(std::string_view op, std::string_view what, const Dims& dims, int64_t size) {
  if (static_cast<int64_t>(dims.size()) == size) return;
  fail(op, std::string(what) + " must have " + std::to_string(size) + " elements, got " +
               to_string(dims));
}

bool contains(const Dims& dims, int64_t value) {
  return std::find(dims.begin(), dims.end(), value) != dims.end();
}

void check_scalar(std::string_view op, std::string_view what, Value value, ElementType dtype) {
  const TensorType expected{dtype, {}};
  if (value.type() == expected) return;
  fail(op,
       std::string(what) + " must be " + to_string(expected) + ", got " + to_string(value.type()));
}

std::vector<TensorType> types_of(const Values& values) {
  std::vector<TensorType> types;
  types.reserve(values.size());
  for (const Value v : values) types.push_back(v.type());
  return types;
}

std::string to_string(const std::vector<TensorType>& types) {
  std::string out = "(";
  for (size_t i = 0; i < types.size(); ++i) {
    if (i) out += ", ";
    out += to_string(types[i]);
  }
  return out + ")";
}

std::vector<TensorType> scalar_types(const Values& values, int times) {
  std::vector<TensorType> types;
  for (const Value v : values)
    types.insert(types.end(), static_cast<size_t>(times), TensorType{v.dtype(), {}});
  return types;
}

Region yielding(std::string_view op, Region region, std::vector<TensorType> expected) {
  return [op = std::string(op), region = std::move(region),
          expected = std::move(expected)](const Values& arguments) {
    Values results = region(arguments);
    const std::vector<TensorType> given = types_of(results);
    if (given != expected) {
      fail(op, "its region must return " + to_string(expected) + ", got " + to_string(given));
    }
    return results;
  };
}

}  // namespace torch_tpu::stablehlo
