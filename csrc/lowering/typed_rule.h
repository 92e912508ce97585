// Rules that compute in a wider type than the one of their result.
#pragma once

#include <string>
#include <utility>

#include "lowering/registry.h"

namespace torch_tpu::lowering {

// `rule` with its first result in the dtype of the tensor argument `name`, for operators whose
// result types PyTorch has no meta kernel to ask for.
inline Rule with_dtype_of(std::string name, Rule rule) {
  return [name = std::move(name), rule = std::move(rule)](Call& call) {
    Values results = rule(call);
    results.at(0) = stablehlo::convert(results[0], call.tensor(name).dtype());
    return results;
  };
}

}  // namespace torch_tpu::lowering
