#include "stablehlo/attributes.h"
#include "stablehlo/check.h"

namespace torch_tpu::stablehlo {

std::array<Value, 2> rng_bit_generator(Value state, const TensorType& bits) {
  constexpr std::string_view kOp = "stablehlo.rng_bit_generator";
  const TensorType expected{ElementType::kU64, {2}};
  if (state.type() != expected) {
    fail(kOp, "the state must be " + to_string(expected) + ", got " + to_string(state.type()));
  }
  // XLA turns signed bits into unsigned ones, and the program's result type with them.
  if (!is_unsigned_int(bits.dtype)) {
    fail(kOp, "expected an unsigned integer type for the bits, got " + to_string(bits) +
                  "; use bitcast_convert() on them");
  }
  const Values made = state.builder().append(
      kOp, {state}, "rng_algorithm = #stablehlo<rng_algorithm PHILOX>", {state.type(), bits});
  return {made[0], made[1]};
}

Values if_(Value pred, const Region& on_true, const Region& on_false,
           const std::vector<TensorType>& results) {
  constexpr std::string_view kOp = "stablehlo.if";
  check_scalar(kOp, "the predicate", pred, ElementType::kPred);
  return pred.builder().append(
      kOp, {pred}, "", results,
      {{{}, yielding(kOp, on_true, results)}, {{}, yielding(kOp, on_false, results)}});
}

Values while_(const Values& init, const Region& condition, const Region& body) {
  constexpr std::string_view kOp = "stablehlo.while";
  if (init.empty()) fail(kOp, "expected at least one loop variable");
  const std::vector<TensorType> types = types_of(init);
  return init[0].builder().append(kOp, init, "", types,
                                  {{types, yielding(kOp, condition, {{ElementType::kPred, {}}})},
                                   {types, yielding(kOp, body, types)}});
}

Values custom_call(Builder& b, std::string_view target, const Values& operands,
                   const std::vector<TensorType>& results, std::string_view backend_config,
                   int api_version, bool has_side_effect) {
  constexpr std::string_view kOp = "stablehlo.custom_call";
  constexpr int kTypedFfi = 4;
  if (target.empty()) fail(kOp, "expected the name of a target");
  if (api_version < 1 || api_version > kTypedFfi) {
    fail(kOp, "expected an API version from 1 to 4, got " + std::to_string(api_version));
  }
  std::string attributes = "call_target_name = " + quoted(target);
  attributes += ", has_side_effect = ";
  attributes += boolean(has_side_effect);
  if (!backend_config.empty()) {
    attributes += ", backend_config = ";
    if (api_version < kTypedFfi) {
      attributes += quoted(backend_config);
    } else {
      if (backend_config.front() != '{' || backend_config.back() != '}') {
        fail(kOp, "the backend_config of API version 4 must be a dictionary {...}, got " +
                      std::string(backend_config));
      }
      attributes += backend_config;
    }
  }
  attributes += ", api_version = " + std::to_string(api_version) + " : i32";
  return b.append(kOp, operands, attributes, results);
}

Values optimization_barrier(const Values& values) {
  if (values.empty()) return {};
  return values[0].builder().append("stablehlo.optimization_barrier", values, "", types_of(values));
}

std::array<Value, 2> top_k(Value x, int64_t k) {
  constexpr std::string_view kOp = "chlo.top_k";
  if (x.rank() < 1 || k < 0 || k > x.dims().back()) {
    fail(kOp,
         "k " + std::to_string(k) + " must be within the last dimension of " + to_string(x.type()));
  }
  if (!is_integer(x.dtype()) && !is_float(x.dtype())) {
    fail(kOp, "expected an integer or float tensor, got " + to_string(x.type()));
  }
  Dims dims = x.dims();
  dims.back() = k;
  const Values made =
      x.builder().append(kOp, {x}, "k = " + i64(k), {{x.dtype(), dims}, {ElementType::kS32, dims}});
  return {made[0], made[1]};
}

}  // namespace torch_tpu::stablehlo
