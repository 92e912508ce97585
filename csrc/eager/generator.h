// The device's random generator: a counter-based stream (see lowering/random.h) named by
// a seed and an offset.
#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>
#include <optional>
#include <utility>

namespace torch_tpu::eager {

// (seed, offset) for a program that draws at most `count` 32-bit numbers; the generator's offset
// moves on by the counter steps this takes. Without a generator: the device's default one.
// Thread-safe.
std::pair<uint64_t, uint64_t> reserve_random(const std::optional<at::Generator>& generator,
                                             int device, int64_t count);

const at::Generator& default_generator(int device);
// Seeds every device's default generator, those that do not exist yet included: which devices there
// are need not be known, so nothing is loaded.
void seed_all_generators(uint64_t seed);
at::Generator make_generator(int device);

}  // namespace torch_tpu::eager
