// The precision at which a call's products of float32 numbers are taken.
#pragma once

#include <functional>
#include <optional>

#include "stablehlo/builder.h"

namespace torch_tpu::eager {

using stablehlo::Precision;

// The level for this thread's calls: the thread's own; else what PyTorch was told, by
// torch.set_float32_matmul_precision or torch.backends.fp32_precision; else kDefault.
Precision current_precision();

// The thread's own level, nullopt for none. It is part of what PyTorch hands on to the threads that
// work for this one: a backward pass that starts here sees it.
std::optional<Precision> thread_precision();
void set_thread_precision(std::optional<Precision> precision);

// Whether programs imitate the levels in float32 arithmetic, because the compiler ignores them. On
// a TPU they do not, elsewhere they do; nullopt returns to that.
bool precision_emulated();
void set_precision_emulated(std::optional<bool> emulated);

// What a program depends on when it takes products of float32, in the few bits that a signature
// has for it: never 0.
using PrecisionCode = uint64_t;
inline constexpr int kPrecisionBits = 3;
PrecisionCode current_precision_code();
stablehlo::Float32Products float32_products(PrecisionCode code);

// Called the first time a program with more than one pass is made, once for each level.
void set_slow_precision_notice(std::function<void(Precision)> notice);
void notice_precision(PrecisionCode code);

}  // namespace torch_tpu::eager
