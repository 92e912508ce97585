"""Padded tensors in reductions and normalizations: what is reduced is masked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_tpu.compiler.dynamic_replay import (
    Call,
    lowers,
    padded,
    single,
    tensor_of,
)
from torch_tpu.compiler.dynamic_sizes import Dim, Padded, is_static

aten = torch.ops.aten


def lowest(dtype: torch.dtype) -> Any:
    """What is not greater than any other number of a type."""
    if dtype == torch.bool:
        return False
    return -torch.inf if dtype.is_floating_point else torch.iinfo(dtype).min


def highest(dtype: torch.dtype) -> Any:
    """What is not less than any other number of a type."""
    if dtype == torch.bool:
        return True
    return torch.inf if dtype.is_floating_point else torch.iinfo(dtype).max


def _axes(call: Call) -> list[int]:
    """The reduced dimensions."""
    rank = len(call.dims("self"))
    dim = call.arguments.get("dim")
    if dim is None or (isinstance(dim, list | tuple) and not dim):
        return list(range(rank))
    return sorted({d % max(rank, 1) for d in (dim if isinstance(dim, list | tuple) else [dim])})


def _remaining(call: Call) -> list[Dim]:
    axes = _axes(call)
    keep = bool(call.arguments.get("keepdim", False))
    return [
        () if axis in axes else dim
        for axis, dim in enumerate(call.dims("self"))
        if keep or axis not in axes
    ]


def _reduced(call: Call, fill: Any) -> Any:
    axes = _axes(call) if call.dims("self") else []
    value = call.masked("self", fill, axes) if call.has_padding("self", axes) else call["self"]
    result = call.run(self=value)
    dims = _remaining(call)
    if isinstance(result, tuple):
        return tuple(padded(one, dims) for one in result)
    return padded(result, dims)


@lowers(
    aten.sum.default,
    aten.sum.dim_IntList,
    aten.any.default,
    aten.any.dim,
    aten.any.dims,
    aten.count_nonzero.default,
    aten.count_nonzero.dim_IntList,
    aten.nansum.default,
)
def _sum(call: Call) -> Any:
    return _reduced(call, 0)


@lowers(aten.all.default, aten.all.dim, aten.all.dims, aten.prod.default, aten.prod.dim_int)
def _product(call: Call) -> Any:
    return _reduced(call, 1)


def _places_are_true(call: Call) -> None:
    """Of an operator that also says where the extremum is."""
    if call.target in (aten.max.dim, aten.min.dim) and call.dims("self"):
        single(call.dims("self")[call.dim()])


@lowers(aten.amax.default, aten.max.default, aten.max.dim, aten.logsumexp.default)
def _max(call: Call) -> Any:
    _places_are_true(call)
    return _reduced(call, lowest(call.tensor("self").dtype))


@lowers(aten.amin.default, aten.min.default, aten.min.dim)
def _min(call: Call) -> Any:
    _places_are_true(call)
    return _reduced(call, highest(call.tensor("self").dtype))


@lowers(aten.argmax.default, aten.argmin.default)
def _argument(call: Call) -> Any:
    own = call.dims("self")
    if call["dim"] is None:
        # The place among all elements is the same in the padded tensor if only the first
        # dimension that is not 1 has padding.
        real = [dim for dim in own if dim]
        if any(not is_static(dim) for dim in real[1:]):
            raise call.refuse("of a flattened tensor with padding in between")
        for dim in real:
            single(dim)
    else:
        single(own[call.dim()])
    dtype = call.tensor("self").dtype
    return _reduced(call, lowest(dtype) if call.target is aten.argmax.default else highest(dtype))


def _accumulated(tensor: torch.Tensor) -> torch.Tensor:
    narrow = tensor.dtype in (torch.float16, torch.bfloat16)
    return tensor.to(torch.float32) if narrow else tensor


@lowers(aten.mean.default, aten.mean.dim)
def _mean(call: Call) -> Any:
    axes = _axes(call)
    if not call.has_padding("self", axes):
        return _reduced(call, 0)
    own = call.dims("self")
    value = tensor_of(call.masked("self", 0, axes))
    value = _accumulated(value.to(call.value.dtype))
    total = value.sum(axes, keepdim=bool(call.arguments.get("keepdim", False)))
    mean = total / call.replay.count([own[axis] for axis in axes])
    return padded(mean.to(call.value.dtype), _remaining(call))


@lowers(
    aten.var.correction,
    aten.std.correction,
    aten.var_mean.correction,
    aten.std_mean.correction,
)
def _variance(call: Call) -> Any:
    axes = _axes(call)
    if not call.has_padding("self", axes):
        return _reduced(call, 0)
    own = call.dims("self")
    keep = bool(call["keepdim"])
    correction = 1 if call["correction"] is None else call.number("correction")
    value = call.tensor("self")
    if value.is_complex():
        raise call.refuse("of complex numbers")
    count = call.replay.count([own[axis] for axis in axes])
    wide = Padded(_accumulated(value), own)
    mean = tensor_of(call.replay.masked(wide, 0, axes)).sum(axes, keepdim=True) / count
    centered = tensor_of(call.replay.masked(Padded(wide.tensor - mean, own), 0, axes))
    variance = (centered * centered).sum(axes, keepdim=keep) / (count - correction).clamp(min=0)
    if not keep:
        mean = mean.squeeze(axes)
    if call.target in (aten.std.correction, aten.std_mean.correction):
        variance = variance.sqrt()
    dims = _remaining(call)
    spread = padded(variance.to(value.dtype), dims)
    if call.target in (aten.var_mean.correction, aten.std_mean.correction):
        return spread, padded(mean.to(value.dtype), dims)
    return spread


@lowers(aten.linalg_vector_norm.default)
def _norm(call: Call) -> Any:
    if call.has_padding("self", _axes(call)) and not call.number("ord") >= 0:
        raise call.refuse("of a negative order")
    return _reduced(call, 0)


@lowers(aten.cumsum.default, aten.cumprod.default, aten.logcumsumexp.default)
def _cumulative(call: Call) -> Any:
    own = call.dims("self")
    if not own:
        return call.run()
    single(own[call.dim()])
    # Elements come before their padding; but the device may compute this as a product with a
    # triangular matrix, in which NaN times zero is not zero.
    return padded(call.run(self=call.masked("self", 0, [call.dim()])), own)


@lowers(aten.cummax.default, aten.cummin.default)
def _cumulative_extremum(call: Call) -> Any:
    own = call.dims("self")
    if own:
        single(own[call.dim()])
    return tuple(padded(one, own) for one in call.run())


@lowers(aten._softmax.default, aten._log_softmax.default, aten._safe_softmax.default)
def _softmax(call: Call) -> Any:
    own = call.dims("self")
    if not own:
        return call.run()
    lowest_number = lowest(call.tensor("self").dtype)
    return padded(call.run(self=call.masked("self", lowest_number, [call.dim()])), own)


@lowers(aten._softmax_backward_data.default, aten._log_softmax_backward_data.default)
def _softmax_backward(call: Call) -> Any:
    own = call.dims("grad_output")
    if not all(map(call.same, own, call.dims("output"))):
        raise call.refuse("operands with their padding at different places")
    axes = [call.dim(of="output")] if own else []
    changes = {name: call.masked(name, 0, axes) for name in ("grad_output", "output")}
    return padded(call.run(**changes), own)


@lowers(aten.sort.default, aten.sort.stable)
def _sort(call: Call) -> Any:
    own = call.dims("self")
    if not own or is_static(own[call.dim()]):
        return tuple(padded(one, own) for one in call.run())
    axis = call.dim()
    single(own[axis])
    tensor = call.tensor("self")
    descending = bool(call["descending"])
    # NaN is the greatest number; of equal ones, those in front stay there.
    last: Any = lowest(tensor.dtype) if descending else highest(tensor.dtype)
    if not descending and tensor.dtype.is_floating_point:
        last = torch.nan
    value = tensor_of(call.masked("self", last, [axis]))
    results = torch.sort(value, dim=axis, descending=descending, stable=True)
    return tuple(padded(one, own) for one in results)


@lowers(aten.topk.default)
def _topk(call: Call) -> Any:
    own = list(call.dims("self"))
    if not own:
        return call.run()
    axis = call.dim()
    value: Any = call["self"]
    if not is_static(own[axis]):
        single(own[axis])
        dtype = call.tensor("self").dtype
        if not call["largest"] and dtype.is_floating_point:
            fill: Any = torch.nan
        else:
            fill = lowest(dtype) if call["largest"] else highest(dtype)
        value = call.masked("self", fill, [axis])
    results = call.run(self=value)
    own[axis] = call.replay.dim(call.result_sizes(0)[axis])
    return tuple(padded(one, own) for one in results)


def _static_tail(call: Call, own: Sequence[Dim], count: int) -> None:
    if any(not is_static(dim) for dim in own[len(own) - count :]):
        raise call.refuse("over a dynamic dimension")


@lowers(aten.native_layer_norm.default)
def _layer_norm(call: Call) -> Any:
    own = call.dims("input")
    count = len(call["normalized_shape"])
    _static_tail(call, own, count)
    stats = [*own[: len(own) - count], *[()] * count]
    out, mean, rstd = call.run(normalized_shape=_static_shape(call, "normalized_shape"))
    return padded(out, own), padded(mean, stats), padded(rstd, stats)


def _static_shape(call: Call, name: str) -> list[int]:
    shape: list[int] = call.number(name)
    return shape


@lowers(aten.native_layer_norm_backward.default)
def _layer_norm_backward(call: Call) -> Any:
    own = call.dims("input")
    _static_tail(call, own, len(call["normalized_shape"]))
    masked = {name: call.masked(name, 0) for name in ("grad_out", "input", "mean", "rstd")}
    grad, weight, bias = call.run(**masked)
    return None if grad is None else padded(grad, own), weight, bias


@lowers(aten._fused_rms_norm.default)
def _rms_norm(call: Call) -> Any:
    own = call.dims("input")
    count = len(call["normalized_shape"])
    _static_tail(call, own, count)
    out, rstd = call.run()
    return padded(out, own), padded(rstd, [*own[: len(own) - count], *[()] * count])


@lowers(aten._fused_rms_norm_backward.default)
def _rms_norm_backward(call: Call) -> Any:
    own = call.dims("input")
    _static_tail(call, own, len(call["normalized_shape"]))
    grad, weight = call.run(
        **{name: call.masked(name, 0) for name in ("grad_out", "input", "rstd")}
    )
    return None if grad is None else padded(grad, own), weight
