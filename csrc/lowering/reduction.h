// Reductions as other rules need them, and the parts of the reduction family.
//
// Here `dims` are sorted, non-negative and may be empty (nothing is reduced), and values are
// already of the type to compute in.
#pragma once

#include "lowering/call.h"
#include "lowering/registry.h"

namespace torch_tpu::lowering {

// The dimensions a call reduces: all of them when it names none.
Dims reduced_dims(const Call& call, int64_t rank, std::string_view name = "dim");
// Number of elements that go into one result.
int64_t reduced_size(const Dims& shape, const Dims& dims);

// `reduced` with the reduced dimensions of `shape` put back, of size 1.
Value keep_dims(Value reduced, const Dims& shape, const Dims& dims);
// `reduced` stretched over the reduced dimensions of `shape`.
Value spread(Value reduced, const Dims& shape, const Dims& dims);

Value sum_over(Value value, const Dims& dims);
Value mean_over(Value value, const Dims& dims);
Value max_over(Value value, const Dims& dims);  // NaN wins
Value min_over(Value value, const Dims& dims);  // NaN wins
Value any_over(Value value, const Dims& dims);  // of a bool
Value all_over(Value value, const Dims& dims);  // of a bool
// (sum of (x - mean)^2) / max(count - correction, 0) and the mean; real types. `correction` is
// 0-d or empty (none).
struct Moments {
  Value variance, mean;
};
Moments moments_over(Value value, const Dims& dims, Value correction = {});
// (sum |x|^p)^(1/p) and its limits, for a real type.
Value norm_over(Value value, double p, const Dims& dims);

// Where along `dim` the first element equal to `extreme` is (the first NaN, if there is one), as
// s64. `extreme` has lost the dimension.
Value first_index_of(Value value, Value extreme, int64_t dim);

// A number in every element, whatever the type (see also constant_like() in expression.h).
Value number_of(Builder& builder, const TensorType& type, double number);
Value is_nonzero(Value value);      // any type to bool
Value convert_halves(Value value);  // to compute_type()

void register_statistics(Registry&);      // statistics.cc: var, std, histc
void register_norm(Registry&);            // norm.cc: norms and distances
void register_segment_reduce(Registry&);  // segment_reduce.cc
void register_hash_tensor(Registry&);     // hash_tensor.cc

}  // namespace torch_tpu::lowering
