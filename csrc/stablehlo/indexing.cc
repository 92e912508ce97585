#include "stablehlo/attributes.h"
#include "stablehlo/check.h"

namespace torch_tpu::stablehlo {
namespace {

// The dimensions of the indices but the one that holds an index vector (which may be one past the
// last: then every index is a vector of one).
Dims index_batch_dims(std::string_view op, Value indices, int64_t index_vector_dim) {
  if (!is_integer(indices.dtype())) {
    fail(op, "indices must be integers, got " + to_string(indices.type()));
  }
  check_dimension(op, "index_vector_dim", index_vector_dim, indices.rank() + 1);
  Dims dims = indices.dims();
  if (index_vector_dim < indices.rank()) dims.erase(dims.begin() + index_vector_dim);
  return dims;
}

// What gather and scatter say about how indices address the operand.
struct Addressing {
  const Dims& window_dims;   // of the result (gather) or the updates (scatter)
  const Dims& missing_dims;  // operand dimensions that the window lacks
  const Dims& operand_batching;
  const Dims& indices_batching;
  const Dims& index_map;
  int64_t index_vector_dim;
};

void check_addressing(std::string_view op, Value operand, Value indices, const Addressing& a,
                      int64_t window_rank) {
  const int64_t index_size =
      a.index_vector_dim < indices.rank() ? indices.dim(a.index_vector_dim) : 1;
  check_dimensions(op, "the index map", a.index_map, operand.rank());
  check_size(op, "the index map", a.index_map, index_size);
  check_dimensions(op, "the window dimensions", a.window_dims, window_rank);
  check_dimensions(op, "the operand batching dimensions", a.operand_batching, operand.rank());
  check_dimensions(op, "the indices batching dimensions", a.indices_batching, indices.rank());
  check_size(op, "the indices batching dimensions", a.indices_batching,
             static_cast<int64_t>(a.operand_batching.size()));
  Dims missing = a.missing_dims;
  missing.insert(missing.end(), a.operand_batching.begin(), a.operand_batching.end());
  check_dimensions(op, "the collapsed and batching dimensions", missing, operand.rank());
  check_size(op, "the window dimensions", a.window_dims,
             operand.rank() - static_cast<int64_t>(missing.size()));
  for (size_t i = 0; i < a.operand_batching.size(); ++i) {
    if (contains(a.index_map, a.operand_batching[i])) {
      fail(op, "dimension " + std::to_string(a.operand_batching[i]) +
                   " is both a batching and an indexed dimension");
    }
    if (a.indices_batching[i] == a.index_vector_dim ||
        operand.dim(a.operand_batching[i]) != indices.dim(a.indices_batching[i])) {
      fail(op, "batching dimensions " + to_string(a.operand_batching) + " of " +
                   to_string(operand.type()) + " and " + to_string(a.indices_batching) + " of " +
                   to_string(indices.type()) + " do not match");
    }
  }
}

}  // namespace

Value gather(Value operand, Value indices, const GatherDims& d, const Dims& slice_sizes,
             bool indices_are_sorted) {
  constexpr std::string_view kOp = "stablehlo.gather";
  const Dims batch = index_batch_dims(kOp, indices, d.index_vector_dim);
  const size_t rank = batch.size() + d.offset_dims.size();
  check_addressing(kOp, operand, indices,
                   {d.offset_dims, d.collapsed_slice_dims, d.operand_batching_dims,
                    d.start_indices_batching_dims, d.start_index_map, d.index_vector_dim},
                   static_cast<int64_t>(rank));
  check_size(kOp, "slice_sizes", slice_sizes, operand.rank());
  Dims window;
  for (int64_t i = 0; i < operand.rank(); ++i) {
    const int64_t size = slice_sizes[static_cast<size_t>(i)];
    const bool missing =
        contains(d.collapsed_slice_dims, i) || contains(d.operand_batching_dims, i);
    if (size < 0 || size > operand.dim(i) || (missing && size > 1)) {
      fail(kOp, "slice_sizes " + to_string(slice_sizes) + " do not fit " +
                    to_string(operand.type()) +
                    ": at most its sizes, 1 in collapsed and batching dimensions");
    }
    if (!missing) window.push_back(size);
  }
  Dims dims(rank);
  size_t next_window = 0;
  size_t next_batch = 0;
  for (size_t i = 0; i < rank; ++i) {
    dims[i] = contains(d.offset_dims, static_cast<int64_t>(i)) ? window[next_window++]
                                                               : batch[next_batch++];
  }
  std::string attributes = "dimension_numbers = #stablehlo.gather<offset_dims = ";
  attributes += to_string(d.offset_dims);
  attributes += ", collapsed_slice_dims = " + to_string(d.collapsed_slice_dims);
  attributes += ", operand_batching_dims = " + to_string(d.operand_batching_dims);
  attributes += ", start_indices_batching_dims = " + to_string(d.start_indices_batching_dims);
  attributes += ", start_index_map = " + to_string(d.start_index_map);
  attributes += ", index_vector_dim = ";
  append_integer(attributes, d.index_vector_dim);
  attributes += ">, slice_sizes = " + dense_array(slice_sizes);
  attributes += ", indices_are_sorted = ";
  attributes += boolean(indices_are_sorted);
  return operand.builder().append1(kOp, {operand, indices}, attributes, {operand.dtype(), dims});
}

Value scatter(Value operand, Value indices, Value updates, const ScatterDims& d,
              const Region& combine, bool indices_are_sorted, bool unique_indices) {
  constexpr std::string_view kOp = "stablehlo.scatter";
  const Dims batch = index_batch_dims(kOp, indices, d.index_vector_dim);
  if (updates.dtype() != operand.dtype()) {
    fail(kOp, "the updates must have the operand's element type, got " + to_string(updates.type()) +
                  " for " + to_string(operand.type()));
  }
  if (updates.dims().size() != batch.size() + d.update_window_dims.size()) {
    fail(kOp, "the updates must have " + std::to_string(batch.size()) + " batch and " +
                  std::to_string(d.update_window_dims.size()) + " window dimensions, got " +
                  to_string(updates.type()));
  }
  check_addressing(
      kOp, operand, indices,
      {d.update_window_dims, d.inserted_window_dims, d.input_batching_dims,
       d.scatter_indices_batching_dims, d.scatter_dims_to_operand_dims, d.index_vector_dim},
      updates.rank());
  int64_t operand_dim = 0;
  size_t next_batch = 0;
  for (int64_t i = 0; i < updates.rank(); ++i) {
    if (!contains(d.update_window_dims, i)) {
      if (updates.dim(i) != batch[next_batch++]) {
        fail(kOp, "dimension " + std::to_string(i) + " of the updates " +
                      to_string(updates.type()) + " does not match the indices " +
                      to_string(indices.type()));
      }
      continue;
    }
    while (contains(d.inserted_window_dims, operand_dim) ||
           contains(d.input_batching_dims, operand_dim)) {
      ++operand_dim;
    }
    if (updates.dim(i) > operand.dim(operand_dim)) {
      fail(kOp, "window dimension " + std::to_string(i) + " of the updates " +
                    to_string(updates.type()) + " is larger than the operand " +
                    to_string(operand.type()));
    }
    ++operand_dim;
  }
  std::string attributes = "scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = ";
  attributes += to_string(d.update_window_dims);
  attributes += ", inserted_window_dims = " + to_string(d.inserted_window_dims);
  attributes += ", input_batching_dims = " + to_string(d.input_batching_dims);
  attributes += ", scatter_indices_batching_dims = " + to_string(d.scatter_indices_batching_dims);
  attributes += ", scatter_dims_to_operand_dims = " + to_string(d.scatter_dims_to_operand_dims);
  attributes += ", index_vector_dim = ";
  append_integer(attributes, d.index_vector_dim);
  attributes += ">, indices_are_sorted = ";
  attributes += boolean(indices_are_sorted);
  attributes += ", unique_indices = ";
  attributes += boolean(unique_indices);
  const std::vector<TensorType> element = scalar_types({operand});
  return operand.builder().append(
      kOp, {operand, indices, updates}, attributes, {operand.type()},
      {{scalar_types({operand}, 2), yielding(kOp, combine, element)}})[0];
}

}  // namespace torch_tpu::stablehlo
