"""Padded tensors in operators that move elements: reshapes, slices, concatenations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch

from torch_tpu.compiler.dynamic_replay import (
    Call,
    PaddedReplay,
    dims_of,
    lowers,
    padded,
    single,
    tensor_of,
)
from torch_tpu.compiler.dynamic_sizes import (
    Dim,
    Number,
    Padded,
    is_static,
    padded_size,
    regroup,
    static_dim,
    true_size,
)

aten = torch.ops.aten


def _with_shape(tensor: torch.Tensor, dims: Sequence[Dim]) -> Any:
    return padded(tensor.reshape([padded_size(dim) for dim in dims]), dims)


@lowers(aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.view_copy.default)
def _view(call: Call) -> Any:
    factors = [factor for dim in call.dims("self") for factor in dim]
    return _with_shape(call.tensor("self"), regroup(factors, call.result_sizes()))


@lowers(aten.view_as_complex.default, aten.view_as_real.default)
def _as_complex(call: Call) -> Any:
    own = call.dims("self")
    if call.target is aten.view_as_real.default:
        return padded(call.run(), [*own, static_dim(2)])
    return padded(call.run(), own[:-1])


@lowers(aten.expand.default, aten.expand_copy.default)
def _expand(call: Call) -> Any:
    sizes = call.result_sizes()
    own = call.dims("self")
    own = ((),) * (len(sizes) - len(own)) + own
    dims = tuple(
        dim or call.replay.dim(size, constant=True) for dim, size in zip(own, sizes, strict=True)
    )
    return padded(call.tensor("self").expand([padded_size(dim) for dim in dims]), dims)


@lowers(aten.permute.default, aten.permute_copy.default)
def _permute(call: Call) -> Any:
    own = call.dims("self")
    return padded(call.run(), [own[axis] for axis in call["dims"]])


@lowers(aten.transpose.int, aten.transpose_copy.int, aten.t.default, aten.t_copy.default)
def _transpose(call: Call) -> Any:
    dims = list(call.dims("self"))
    if call.target in (aten.t.default, aten.t_copy.default):
        dims.reverse()
    elif dims:
        left, right = call.dim("dim0"), call.dim("dim1")
        dims[left], dims[right] = dims[right], dims[left]
    return padded(call.run(), dims)


@lowers(aten.unsqueeze.default, aten.unsqueeze_copy.default)
def _unsqueeze(call: Call) -> Any:
    dims = list(call.dims("self"))
    dims.insert(int(call["dim"]) % (len(dims) + 1), ())
    return padded(call.run(), dims)


@lowers(aten.squeeze, aten.squeeze_copy)
def _squeeze(call: Call) -> Any:
    own = call.dims("self")
    which = call.arguments.get("dim")
    axes = range(len(own)) if which is None else which if isinstance(which, list) else [which]
    gone = {axis % max(len(own), 1) for axis in axes}
    return _with_shape(
        call.tensor("self"),
        [dim for axis, dim in enumerate(own) if axis not in gone or dim],
    )


def take(replay: PaddedReplay, value: Any, axis: int, places: torch.Tensor) -> torch.Tensor:
    """The elements at these places of a dimension; places that do not exist are as good as any."""
    tensor = tensor_of(value)
    places = places.to(torch.int64).clamp(0, max(tensor.shape[axis] - 1, 0))
    return tensor.index_select(axis, places)


def place_from(call: Call, place: Any, dim: Dim) -> Any:
    """A place counted from either end: an int if that is in front, else a 0-d tensor."""
    if isinstance(place, Number):
        # PyTorch knows of the sign of an expression as little as this does.
        value = call.replay.value_of(place.value)
        return torch.where(value < 0, value + call.replay.count([dim]), value)
    if place >= 0:
        return place
    if is_static(dim):
        return max(place + padded_size(dim), 0)
    return (call.replay.count([dim]) + place).clamp(min=0)


@lowers(aten.select.int)
def _select(call: Call) -> Any:
    dims = list(call.dims("self"))
    axis = call.dim()
    dim = dims.pop(axis)
    single(dim)
    place = place_from(call, call["index"], dim)
    if isinstance(place, int):
        return padded(call.run(dim=axis, index=place), dims)
    taken = take(call.replay, call["self"], axis, place.reshape(1))
    return padded(taken.squeeze(axis), dims)


@lowers(aten.slice.Tensor)
def _slice(call: Call) -> Any:
    own = call.dims("self")
    axis = call.dim()
    dim, size = own[axis], call.result_sizes()[axis]
    tensor = call.tensor("self")
    start, step = call["start"] or 0, call.number("step")
    if size == true_size(dim) and start == 0 and step == 1:
        return padded(tensor, own)
    single(dim)
    result = call.replay.dim(size)
    dims = [*own[:axis], result, *own[axis + 1 :]]
    place = place_from(call, start, dim)
    length = padded_size(result)
    if isinstance(place, int) and place + (length - 1) * step < tensor.shape[axis]:
        end = place + (length - 1) * step + 1
        return padded(aten.slice.Tensor(tensor, axis, place, max(end, place), step), dims)
    places = torch.arange(length, dtype=torch.int64, device=call.replay.device) * step + place
    return padded(take(call.replay, call["self"], axis, places), dims)


def put(
    replay: PaddedReplay, into: torch.Tensor, part: Any, axis: int, start: Any, step: int = 1
) -> torch.Tensor:
    """``into`` with the elements of ``part`` from ``start`` on, ``step`` apart."""
    (dim,) = [dims_of(part)[axis]]
    rel = torch.arange(into.shape[axis], dtype=torch.int64, device=replay.device) - start
    inside = torch.logical_and(rel >= 0, rel < replay.count([dim]) * step)
    if step != 1:
        inside = torch.logical_and(inside, rel % step == 0)
        rel = torch.div(rel, step, rounding_mode="floor")
    shape = [1] * into.dim()
    shape[axis] = -1
    return torch.where(inside.reshape(shape), take(replay, part, axis, rel), into)


@lowers(aten.slice_scatter.default)
def _slice_scatter(call: Call) -> Any:
    own = call.dims("self")
    axis = call.dim()
    _agree(call, own, call.dims("src"), axis)
    single(call.dims("src")[axis])
    single(own[axis])
    place = place_from(call, call["start"] or 0, own[axis])
    return padded(
        put(call.replay, call.tensor("self"), call["src"], axis, place, call.number("step")), own
    )


@lowers(aten.select_scatter.default)
def _select_scatter(call: Call) -> Any:
    own = call.dims("self")
    axis = call.dim()
    single(own[axis])
    src_dims = list(call.dims("src"))
    src_dims.insert(axis, ())
    _agree(call, own, src_dims, axis)
    part = padded(call.tensor("src").unsqueeze(axis), src_dims)
    place = place_from(call, call["index"], own[axis])
    return padded(put(call.replay, call.tensor("self"), part, axis, place), own)


def _agree(call: Call, left: Sequence[Dim], right: Sequence[Dim], but: int) -> None:
    if len(left) != len(right) or any(
        not call.same(one, other)
        for axis, (one, other) in enumerate(zip(left, right, strict=True))
        if axis != but
    ):
        raise call.refuse("operands with their padding at different places")


def _input_dims(call: Call, grad: Sequence[Dim | None]) -> list[Dim]:
    """The dimensions of what was sliced: as the gradient's, but for those not known from it."""
    return [
        dim if dim is not None else call.replay.dim(size)
        for dim, size in zip(grad, call.result_sizes(), strict=True)
    ]


@lowers(aten.slice_backward.default)
def _slice_backward(call: Call) -> Any:
    grad = call.dims("grad_output")
    axis = int(call.number("dim")) % len(grad)
    size = call.result_sizes()[axis]
    step = call.number("step")
    if size == true_size(grad[axis]) and call["start"] == 0 and step == 1:
        return padded(call.tensor("grad_output"), grad)
    single(grad[axis])
    dims = _input_dims(call, [*grad[:axis], None, *grad[axis + 1 :]])
    zeros = torch.zeros(
        [padded_size(dim) for dim in dims], dtype=call.value.dtype, device=call.replay.device
    )
    place = place_from(call, call["start"], dims[axis])
    return padded(put(call.replay, zeros, call["grad_output"], axis, place, step), dims)


@lowers(aten.select_backward.default)
def _select_backward(call: Call) -> Any:
    grad = list(call.dims("grad_output"))
    axis = int(call.number("dim")) % (len(grad) + 1)
    dims = _input_dims(call, [*grad[:axis], None, *grad[axis:]])
    place = place_from(call, call["index"], dims[axis])
    shape = [padded_size(dim) for dim in dims]
    if isinstance(place, int):
        return padded(call.run(input_sizes=shape, dim=axis, index=place), dims)
    part = padded(call.tensor("grad_output").unsqueeze(axis), [*grad[:axis], (), *grad[axis:]])
    zeros = torch.zeros(shape, dtype=call.value.dtype, device=call.replay.device)
    return padded(put(call.replay, zeros, part, axis, place), dims)


@lowers(aten.cat.default)
def _cat(call: Call) -> Any:
    tensors = call["tensors"]
    rank = max(len(dims_of(tensor)) for tensor in tensors)
    # An empty 1-d tensor goes with any.
    tensors = [t for t in tensors if len(dims_of(t)) == rank]
    axis = int(call.number("dim")) % rank
    for tensor in tensors[1:]:
        _agree(call, dims_of(tensors[0]), dims_of(tensor), axis)
    own = dims_of(tensors[0])
    parts = [dims_of(tensor)[axis] for tensor in tensors]
    dtype = call.value.dtype
    values = [tensor_of(tensor).to(dtype) for tensor in tensors]
    if all(is_static(part) for part in parts):
        size = sum(padded_size(part) for part in parts)
        dims = [*own[:axis], static_dim(size), *own[axis + 1 :]]
        return padded(torch.cat(values, axis), dims)
    for part in parts:
        single(part)
    dim = call.replay.dim(call.result_sizes()[axis])
    dims = [*own[:axis], dim, *own[axis + 1 :]]
    if all(is_static(part) for part in parts[:-1]):
        joined = torch.cat(values, axis)
        if joined.shape[axis] >= padded_size(dim):
            return padded(joined.narrow(axis, 0, padded_size(dim)), dims)
    shape = [padded_size(dim) for dim in dims]
    result = torch.zeros(shape, dtype=dtype, device=call.replay.device)
    start: Any = 0
    for value, part, tensor in zip(values, parts, tensors, strict=True):
        part_value = Padded(value, dims_of(tensor)) if isinstance(tensor, Padded) else value
        result = put(call.replay, result, part_value, axis, start)
        start = start + call.replay.count([part])
    return padded(result, dims)


@lowers(aten.stack.default)
def _stack(call: Call) -> Any:
    tensors = call["tensors"]
    own = dims_of(tensors[0])
    for tensor in tensors[1:]:
        _agree(call, own, dims_of(tensor), -1)
    dims = list(own)
    dims.insert(int(call.number("dim")) % (len(own) + 1), static_dim(len(tensors)))
    return padded(call.run(), dims)


@lowers(
    aten.split.Tensor,
    aten.split_with_sizes.default,
    aten.unbind.int,
)
def _split(call: Call) -> Any:
    own = list(call.dims("self"))
    axis = call.dim()
    if not is_static(own[axis]):
        raise call.refuse("along a dynamic dimension")
    results = []
    for part in call.run():
        dims = list(own)
        if call.target is aten.unbind.int:
            del dims[axis]
        else:
            dims[axis] = static_dim(part.shape[axis])
        results.append(padded(part, dims))
    return results


@lowers(aten.flip.default)
def _flip(call: Call) -> Any:
    own = call.dims("self")
    value: Any = call["self"]
    for axis in call["dims"]:
        axis = axis % len(own)
        if is_static(own[axis]):
            value = padded(tensor_of(value).flip(axis), own)
            continue
        places = call.replay.count([own[axis]]) - 1 - call.replay.positions(single(own[axis]))
        value = padded(take(call.replay, value, axis, places), own)
    return value


@lowers(aten.roll.default)
def _roll(call: Call) -> Any:
    own = call.dims("self")
    axes = call["dims"]
    if not axes:
        raise call.refuse("of a flattened tensor")
    value: Any = call["self"]
    for shift, axis in zip(call["shifts"], axes, strict=True):
        axis = axis % len(own)
        by = call.replay.value_of(shift.value) if isinstance(shift, Number) else shift
        if is_static(own[axis]) and isinstance(by, int):
            value = padded(tensor_of(value).roll(by, axis), own)
            continue
        size = call.replay.count([own[axis]])
        places = torch.remainder(call.replay.positions(single(own[axis])) - by, size)
        value = padded(take(call.replay, value, axis, places), own)
    return value


@lowers(aten.repeat.default)
def _repeat(call: Call) -> Any:
    repeats = call["repeats"]
    own = call.dims("self")
    sizes = call.result_sizes()
    own = ((),) * (len(sizes) - len(own)) + own
    dims: list[Dim] = []
    counts: list[int] = []
    for dim, size, repeat in zip(own, sizes, repeats, strict=True):
        if not isinstance(repeat, Number) and (is_static(dim) or repeat == 1):
            dims.append(dim if repeat == 1 else static_dim(padded_size(dim) * repeat))
            counts.append(repeat)
        elif not dim or is_static(dim):
            # [n] repeated: as many groups as the size says, each of n.
            new = call.replay.dim(sympy.cancel(size / true_size(dim)), constant=True)
            dims.append(new + dim)
            counts.append(padded_size(new))
        else:
            raise call.refuse("along a dynamic dimension")
    return padded(call.tensor("self").repeat(counts), dims)


@lowers(aten.constant_pad_nd.default)
def _constant_pad(call: Call) -> Any:
    own = list(call.dims("self"))
    pads = call.number("pad")
    fill = call.number("value")
    value: Any = call["self"]
    for place in range(len(pads) // 2):
        low, high = pads[2 * place], pads[2 * place + 1]
        axis = len(own) - 1 - place
        if low == 0 and high == 0:
            continue
        if is_static(own[axis]):
            own[axis] = static_dim(padded_size(own[axis]) + low + high)
            continue
        single(own[axis])
        value = call.replay.masked(value, fill, [axis])
        own[axis] = call.replay.dim(call.result_sizes()[axis])
    return padded(aten.constant_pad_nd.default(tensor_of(value), pads, fill), own)
