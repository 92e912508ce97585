// The rule families, one source file each.
#pragma once

#include "lowering/registry.h"

namespace torch_tpu::lowering {

void register_pointwise(Registry&);      // pointwise.cc: unary, binary, comparison, where, casts
void register_activation(Registry&);     // activation.cc: gelu, silu, ... and their backwards
void register_loss(Registry&);           // loss.cc: nll, mse, bce, ... and their backwards
void register_reduction(Registry&);      // reduction.cc: sum, mean, max, argmax, any, norm, var
void register_scan(Registry&);           // scan.cc: cumsum, cumprod, cummax ...
void register_sorting(Registry&);        // sorting.cc: sort, topk, searchsorted ...
void register_normalization(Registry&);  // normalization.cc: softmax, layer/batch/group norm
void register_matmul(Registry&);         // matmul.cc: mm, bmm, addmm, dot ...
void register_convolution(Registry&);    // convolution.cc
void register_pooling(Registry&);        // pooling.cc: max/avg/adaptive pools and backwards
void register_resampling(Registry&);     // resampling.cc: upsample, grid_sampler, padding modes
void register_attention(Registry&);      // attention.cc: scaled dot product attention
void register_recurrent(Registry&);      // recurrent.cc: fused LSTM and GRU cells
void register_indexing(Registry&);       // indexing.cc: gather, scatter, index, embedding ...
void register_nonzero(Registry&);        // nonzero.cc: nonzero_static
void register_copy(Registry&);           // copy.cc: copy_ on one device
void register_shape(Registry&);          // shape.cc: cat, roll, flip, tril, repeat ...
void register_creation(Registry&);       // creation.cc: fill, arange, linspace, eye ...
void register_random(Registry&);         // random.cc: normal_, uniform_, bernoulli_, dropout ...
void register_foreach(Registry&);        // foreach.cc: _foreach_*, fused optimizers, amp
void register_linalg(Registry&);         // linalg.cc: cholesky, triangular_solve, qr, fft ...

}  // namespace torch_tpu::lowering
