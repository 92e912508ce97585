// x[i] for every i of a loop: calls that differ only in where their views start.
//
// Where a view starts is part of a call's signature, so each start costs a program. After a few of
// them the signature goes without, and the starts become operands.
#pragma once

#include "eager/call_state.h"

namespace torch_tpu::eager {

// Rewrites the gathered signature if calls like this one, at other starts, have been compiled
// often enough: starts leave the key and enter state.numbers and state.moving.
void let_views_move(CallState& state);

// A call with this (unmoved) signature was compiled.
void count_starts(const OperatorInfo& info, const CallState& state);

// Grows whenever calls that were compiled before may from now on need another program.
uint64_t moving_views_epoch();

// Signatures without starts are not to be used for this call: something could not be lowered.
void keep_views_still(const CallState& state);

// The dtype of a box's starts as operands.
stablehlo::ElementType start_type(const lowering::BaseBox& box);

}  // namespace torch_tpu::eager
