"""Padded tensors in matrix products, convolutions and attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_tpu.compiler.dynamic_pointwise import broadcast
from torch_tpu.compiler.dynamic_replay import (
    Call,
    lowers,
    padded,
    single,
    tensor_of,
)
from torch_tpu.compiler.dynamic_sizes import Dim, Number, is_static, padded_size, true_size

aten = torch.ops.aten


def _contract(call: Call, left: str, left_axis: int, right: str, right_axis: int) -> dict[str, Any]:
    """Both operands, with zeros in the padding of the dimension that is summed over."""
    dim, other = call.dims(left)[left_axis], call.dims(right)[right_axis]
    if not call.same(dim, other):
        raise call.refuse("operands with their padding at different places")
    if is_static(dim):
        return {}
    return {
        left: call.masked(left, 0, [left_axis % len(call.dims(left))]),
        right: call.masked(right, 0, [right_axis % len(call.dims(right))]),
    }


@lowers(aten.mm.default)
def _mm(call: Call) -> Any:
    changes = _contract(call, "self", 1, "mat2", 0)
    return padded(call.run(**changes), [call.dims("self")[0], call.dims("mat2")[1]])


@lowers(aten.addmm.default)
def _addmm(call: Call) -> Any:
    changes = _contract(call, "mat1", 1, "mat2", 0)
    dims = [call.dims("mat1")[0], call.dims("mat2")[1]]
    _fits(call, dims)
    return padded(call.run(**changes), dims)


@lowers(aten.bmm.default)
def _bmm(call: Call) -> Any:
    left, right = call.dims("self"), call.dims("mat2")
    if not call.same(left[0], right[0]):
        raise call.refuse("operands with their padding at different places")
    return padded(call.run(**_contract(call, "self", 2, "mat2", 1)), [left[0], left[1], right[2]])


@lowers(aten.baddbmm.default)
def _baddbmm(call: Call) -> Any:
    left, right = call.dims("batch1"), call.dims("batch2")
    if not call.same(left[0], right[0]):
        raise call.refuse("operands with their padding at different places")
    dims = [left[0], left[1], right[2]]
    _fits(call, dims)
    return padded(call.run(**_contract(call, "batch1", 2, "batch2", 1)), dims)


def _fits(call: Call, dims: Sequence[Dim]) -> None:
    """Whether what is added goes with the product."""
    added = call.dims("self")
    if any(
        dim and not call.same(dim, dims[len(dims) - len(added) + i]) for i, dim in enumerate(added)
    ):
        raise call.refuse("operands with their padding at different places")


@lowers(aten.mv.default)
def _mv(call: Call) -> Any:
    return padded(call.run(**_contract(call, "self", 1, "vec", 0)), [call.dims("self")[0]])


@lowers(aten.dot.default)
def _dot(call: Call) -> Any:
    return call.run(**_contract(call, "self", 0, "tensor", 0))


@lowers(aten.convolution.default)
def _convolution(call: Call) -> Any:
    own = call.dims("input")
    spatial = range(2, len(own))
    if call.has_padding("input", [1]) or any(not is_static(dim) for dim in call.dims("weight")):
        raise call.refuse("dynamic channels")
    if call["transposed"] and call.has_padding("input", spatial):
        raise call.refuse("transposed, over a dynamic dimension")
    for axis in spatial:
        single(own[axis])
    sizes = call.result_sizes()
    dims = [own[0], *(call.replay.dim(size) for size in sizes[1:])]
    return padded(call.run(input=call.masked("input", 0)), dims)


@lowers(aten.convolution_backward.default)
def _convolution_backward(call: Call) -> Any:
    own = call.dims("input")
    if call.has_padding("input", [1]) or any(not is_static(dim) for dim in call.dims("weight")):
        raise call.refuse("dynamic channels")
    for dims in (own, call.dims("grad_output")):
        for axis in range(2, len(dims)):
            single(dims[axis])
            if call["transposed"] and not is_static(dims[axis]):
                raise call.refuse("transposed, over a dynamic dimension")
    grad, weight, bias = call.run(
        grad_output=call.masked("grad_output", 0), input=call.masked("input", 0)
    )
    return None if grad is None else padded(grad, own), weight, bias


# --- Attention ------------------------------------------------------------------------------------


def _with_masked_keys(call: Call) -> dict[str, Any]:
    """The arguments of attention in which no query sees the padding of the keys."""
    changes: dict[str, Any] = {name: call.masked(name, 0) for name in ("key", "value")}
    bias: Any = call["attn_bias"]
    if bias is not None:
        changes["attn_bias"] = call.masked("attn_bias", 0)
    rows, keys = call.dims("query")[-2], call.dims("key")[-2]
    if is_static(keys):
        return changes
    single(keys)
    # Of as many keys as queries, in order, a query sees none after its own place.
    if call["is_causal"] and call.same(rows, keys):
        return changes
    query, key = call.tensor("query"), call.tensor("key")
    visible = call.replay.valid(keys).reshape(1, -1)
    if call["is_causal"]:
        places = call.replay.positions(single(keys)).reshape(1, -1)
        own_place = torch.arange(query.shape[-2], device=call.replay.device).reshape(-1, 1)
        visible = torch.logical_and(visible, places <= own_place)
        changes["is_causal"] = False
    if bias is None:
        shape = [1] * (query.dim() - 2) + [query.shape[-2], key.shape[-2]]
        tensor = torch.zeros(shape, dtype=query.dtype, device=call.replay.device)
    else:
        tensor = tensor_of(changes["attn_bias"])
    changes["attn_bias"] = tensor.masked_fill(torch.logical_not(visible), -torch.inf)
    return changes


def _rows_fit(call: Call) -> None:
    query, key, value = (call.dims(name) for name in ("query", "key", "value"))
    if len(query) < 2 or not call.same(key[-2], value[-2]):
        raise call.refuse("operands with their padding at different places")
    for left, right in ((query, key), (query, value), (key, value)):
        for one, other in zip(left[:-2], right[:-2], strict=True):
            if not (is_static(one) and is_static(other)) and not call.same(one, other):
                raise call.refuse("operands with their padding at different places")
    for dims in (query, key, value):
        if not is_static(dims[-1]):
            raise call.refuse("of dynamic depth")
    bias = call["attn_bias"]
    if bias is not None:
        expected = [*query[:-2], query[-2], key[-2]]
        own = call.dims("attn_bias")
        for one, other in zip(own, expected[len(expected) - len(own) :], strict=True):
            if one and not is_static(other) and not call.same(one, other):
                raise call.refuse(
                    f"a mask of {true_size(one)} where {true_size(other)} is expected"
                )


_FUSED = aten._scaled_dot_product_fused_attention_overrideable.default
_FUSED_BACKWARD = aten._scaled_dot_product_fused_attention_overrideable_backward.default


@lowers(_FUSED)
def _attention(call: Call) -> Any:
    _rows_fit(call)
    results = list(call.run(**_with_masked_keys(call)))
    query, value = call.dims("query"), call.dims("value")
    results[0] = padded(results[0], [*query[:-1], value[-1]])
    results[1] = padded(results[1], query[:-1])
    for place, result in enumerate(results[2:], start=2):
        size = call.value[place]
        if isinstance(size, torch.SymInt):
            results[place] = Number(call.replay.sizes.expression(size))
        elif not isinstance(result, torch.Tensor):
            results[place] = size
    return tuple(results)


@lowers(_FUSED_BACKWARD)
def _attention_backward(call: Call) -> Any:
    _rows_fit(call)
    changes = _with_masked_keys(call)
    for name in ("grad_out", "query", "out", "logsumexp"):
        changes[name] = call.masked(name, 0)
    bias = call["attn_bias"]
    added = changes.get("attn_bias")
    if bias is not None and added is not None and call["grad_input_mask"][3]:
        expected = tuple(tensor_of(bias).shape)
        if tuple(tensor_of(added).shape) != expected:
            raise call.refuse("a gradient of a mask that is broadcast over the keys")
    for name, of in (("max_q", "query"), ("max_k", "key")):
        if isinstance(call[name], Number):
            changes[name] = padded_size(call.dims(of)[-2])
    results = call.run(**changes)
    dims = [call.dims("query"), call.dims("key"), call.dims("value")]
    if bias is not None:
        dims.append(call.dims("attn_bias"))
    return tuple(
        None if result is None or place >= len(dims) else padded(result, dims[place])
        for place, result in enumerate(results)
    )


@lowers(aten.linear.default)
def _linear(call: Call) -> Any:
    own, weight = call.dims("input"), call.dims("weight")
    if not call.same(own[-1], weight[-1]):
        raise call.refuse("operands with their padding at different places")
    changes: dict[str, Any] = {}
    if not is_static(own[-1]):
        changes = {name: call.masked(name, 0) for name in ("input", "weight")}
    return padded(call.run(**changes), [*own[:-1], *weight[:-1]])


@lowers(aten.addcmul.default, aten.addcdiv.default)
def _addcmul(call: Call) -> Any:
    names = ("self", "tensor1", "tensor2")
    return padded(call.run(), broadcast(call, [call[name] for name in names]))
