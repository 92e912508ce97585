"""Padded tensors in lookups: an index in the padding is set to one that exists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_tpu.compiler.dynamic_pointwise import broadcast
from torch_tpu.compiler.dynamic_replay import (
    Call,
    dims_of,
    lowers,
    padded,
    single,
    tensor_of,
)
from torch_tpu.compiler.dynamic_sizes import Dim, is_static, padded_size

aten = torch.ops.aten


@lowers(aten.embedding.default)
def _embedding(call: Call) -> Any:
    dims = [*call.dims("indices"), *call.dims("weight")[1:]]
    changes: dict[str, Any] = {"indices": call.masked("indices", 0)}
    # What they are for holds for gradients, which are another operator.
    changes.update(padding_idx=-1, scale_grad_by_freq=False, sparse=False)
    return padded(call.run(**changes), dims)


@lowers(aten.embedding_dense_backward.default)
def _embedding_backward(call: Call) -> Any:
    if call["scale_grad_by_freq"]:
        raise call.refuse("scale_grad_by_freq")
    grad, indices = call.dims("grad_output"), call.dims("indices")
    if not all(map(call.same, grad, indices)):
        raise call.refuse("operands with their padding at different places")
    dims = [call.replay.dim(call.result_sizes()[0]), *grad[len(indices) :]]
    changes = {
        "grad_output": call.masked("grad_output", 0),
        "indices": call.masked("indices", 0),
        "num_weights": padded_size(dims[0]),
    }
    return padded(call.run(**changes), dims)


def _indexed(call: Call) -> tuple[list[Any], list[int], tuple[Dim, ...]]:
    """The indices without those of padding, the dimensions they are for, their own dimensions."""
    own = call.dims("self")
    indices: list[Any] = list(call["indices"])
    given = [axis for axis, index in enumerate(indices) if index is not None]
    for axis in given:
        index = tensor_of(indices[axis])
        if index.dtype in (torch.bool, torch.uint8):
            raise call.refuse("the number of elements depends on a mask")
        single(own[axis])
        if not is_static(own[axis]):
            size = call.replay.count([own[axis]])
            wrapped = torch.where(index < 0, index + size, index)
            indices[axis] = padded(wrapped, dims_of(indices[axis]))
        indices[axis] = call.replay.masked(indices[axis], 0)
    dims = broadcast(call, [indices[axis] for axis in given])
    return indices, given, dims


@lowers(aten.index.Tensor, aten._unsafe_index.Tensor)
def _index(call: Call) -> Any:
    own = list(call.dims("self"))
    indices, given, dims = _indexed(call)
    rest = [dim for axis, dim in enumerate(own) if axis not in given]
    adjacent = given[-1] - given[0] == len(given) - 1
    front = given[0] if adjacent else 0
    result = aten.index.Tensor(
        call.tensor("self"), [None if i is None else tensor_of(i) for i in indices]
    )
    return padded(result, [*rest[:front], *dims, *rest[front:]])


@lowers(aten.index_put.default, aten._unsafe_index_put.default)
def _index_put(call: Call) -> Any:
    own = call.dims("self")
    indices, given, dims = _indexed(call)
    tensors = [None if index is None else tensor_of(index) for index in indices]
    values: Any = call["values"]
    if any(not is_static(dim) for dim in dims):
        if not call["accumulate"]:
            raise call.refuse("without accumulate, at a dynamic number of places")
        if given != list(range(len(given))):
            raise call.refuse("not of the first dimensions")
        target = [*dims, *own[len(given) :]]
        values_dims = dims_of(values)
        for one, other in zip(values_dims, target[len(target) - len(values_dims) :], strict=True):
            if one and not call.same(one, other):
                raise call.refuse("operands with their padding at different places")
        places = torch.broadcast_shapes(*[index.shape for index in tensors if index is not None])
        wide = tensor_of(values).expand([*places, *call.tensor("self").shape[len(given) :]])
        values = call.replay.masked(padded(wide, target), 0)
    result = aten.index_put.default(
        call.tensor("self"), tensors, tensor_of(values), call["accumulate"]
    )
    return padded(result, own)


@lowers(aten.index_select.default)
def _index_select(call: Call) -> Any:
    own = list(call.dims("self"))
    axis = call.dim()
    single(own[axis])
    (own[axis],) = call.dims("index") or ((),)
    return padded(call.run(index=call.masked("index", 0)), own)


@lowers(aten.index_add.default)
def _index_add(call: Call) -> Any:
    own = call.dims("self")
    axis = call.dim()
    single(own[axis])
    _agree(call, own, call.dims("source"), axis)
    if not call.same(call.dims("index")[0], call.dims("source")[axis]):
        raise call.refuse("operands with their padding at different places")
    changes = {"index": call.masked("index", 0), "source": call.masked("source", 0, [axis])}
    return padded(call.run(**changes), own)


def _agree(call: Call, left: Sequence[Dim], right: Sequence[Dim], but: int) -> None:
    for axis, (one, other) in enumerate(zip(left, right, strict=True)):
        if axis != but and not call.same(one, other):
            if is_static(one) and is_static(other):
                continue
            raise call.refuse("operands with their padding at different places")


@lowers(aten.gather.default)
def _gather(call: Call) -> Any:
    index = call.dims("index")
    if not index:
        return padded(call.run(), index)
    single(call.dims("self")[call.dim()])
    _agree(call, call.dims("self"), index, call.dim())
    return padded(call.run(index=call.masked("index", 0)), index)


@lowers(aten.scatter_add.default)
def _scatter_add(call: Call) -> Any:
    own = call.dims("self")
    _scatters(call, own)
    if not _alike(call):
        raise call.refuse("operands with their padding at different places")
    changes = {"index": call.masked("index", 0), "src": call.masked("src", 0)}
    return padded(call.run(**changes), own)


@lowers(aten.scatter.src, aten.scatter.value)
def _scatter(call: Call) -> Any:
    own = call.dims("self")
    _scatters(call, own)
    if call.target is aten.scatter.src and not _alike(call):
        raise call.refuse("operands with their padding at different places")
    if call.has_padding("index", [call.dim()]):
        # One place more, for what the padding writes.
        axis, tensor = call.dim(), call.tensor("self")
        size = tensor.shape[axis]
        pads = [0, 0] * (len(own) - 1 - axis) + [0, 1]
        wide = aten.constant_pad_nd.default(tensor, pads)
        result = call.run(self=wide, index=call.masked("index", size))
        return padded(result.narrow(axis, 0, size), own)
    # What the padding of the other dimensions writes goes to padding.
    return padded(call.run(index=call.masked("index", 0)), own)


def _alike(call: Call) -> bool:
    source, index = call.dims("src"), call.dims("index")
    return len(source) == len(index) and all(map(call.same, source, index))


def _scatters(call: Call, own: Sequence[Dim]) -> None:
    if not own:
        raise call.refuse("of a number")
    single(own[call.dim()])
    _agree(call, own, call.dims("index"), call.dim())
