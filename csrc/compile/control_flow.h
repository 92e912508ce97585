// Control flow of a graph that is being traced: bodies become regions of the program.
#pragma once

#include "compile/compiled_graph.h"

namespace torch_tpu::compile {

// All of these are called inside of the body of a CompiledGraph, with tensors of its trace. A body
// may use every tensor it is given, but must not write to them: that throws TraceAborted, as does
// what a program cannot say.

// One of two bodies, each given `operands`, as `predicate` (one element) says. Both give the same
// dtypes and shapes.
CompiledGraph::Values cond(const at::Tensor& predicate, const CompiledGraph::Body& on_true,
                           const CompiledGraph::Body& on_false,
                           const CompiledGraph::Values& operands);

// `body` as long as `condition` gives a true element. Both are given the carried tensors, as body
// gave them last, followed by `others`.
CompiledGraph::Values while_loop(const CompiledGraph::Body& condition,
                                 const CompiledGraph::Body& body,
                                 const CompiledGraph::Values& carried,
                                 const CompiledGraph::Values& others);

// `body` for each slice of `slices` (tensors of the same first dimension, at least 1) in turn. It
// is given the carried tensors, the slices and `others`, and gives the next carried tensors and
// results. Gives the last carried tensors, and the results of all steps, stacked.
CompiledGraph::Values scan(const CompiledGraph::Body& body, const CompiledGraph::Values& carried,
                           const CompiledGraph::Values& slices,
                           const CompiledGraph::Values& others);

// The random numbers that the next draw begins with, as a tensor: uint64 (seed, offset).
at::Tensor random_position(int device);
// Runs `body` so that it draws the numbers from `position` on; those that are drawn afterwards are
// what they would have been without.
CompiledGraph::Values at_random_position(const at::Tensor& position,
                                         const CompiledGraph::Body& body,
                                         const CompiledGraph::Values& inputs);

}  // namespace torch_tpu::compile
