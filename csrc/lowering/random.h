// Random numbers inside a program.
#pragma once

#include "lowering/registry.h"

namespace torch_tpu::lowering {

// 32-bit words of randomness one element of a draw takes.
struct Words {
  static int64_t uniform(ElementType type) { return type == ElementType::kF64 ? 2 : 1; }
  static int64_t normal(ElementType type) { return type == ElementType::kF64 ? 4 : 1; }
  static int64_t exponential(ElementType type) { return uniform(type); }
  static int64_t below(uint64_t range);
};

// Draws one after the other from one generator state. Floating types are float32 and float64.
class Random {
 public:
  // `words`: 32-bit words for all the draws to come; the device's generator moves on by as many.
  Random(Call& call, int64_t words) : Random(call.rng_state(words)) {}
  explicit Random(Value state) : state_(state) {}

  Value state() const { return state_; }

  Value bits(ElementType unsigned_type, const Dims& dims);
  // In [0, 1), of `digits` random binary digits (at most what the type holds; 0: all of them).
  Value uniform(ElementType type, const Dims& dims, int digits = 0);
  // Standard normal; the tails reach to 2^-32 (float32) and 2^-53 (float64).
  Value normal(ElementType type, const Dims& dims);
  // Of rate 1; above 0, and precise at both ends.
  Value exponential(ElementType type, const Dims& dims);
  // Standard Cauchy.
  Value cauchy(ElementType type, const Dims& dims);
  // Integers in [0, range), as u32 or u64; range 0 stands for 2^64.
  Value below(uint64_t range, const Dims& dims);

 private:
  Value state_;
};

// The type a distribution over `dtype` is computed in: float64 for itself, else float32.
ElementType sampling_type(ElementType dtype);

// Refuses a call whose parameters, of this dtype, are not floating-point numbers.
void require_real(const Call& call, ElementType dtype);

void register_random_rejection(Registry&);  // gamma, poisson, binomial, dirichlet

}  // namespace torch_tpu::lowering
