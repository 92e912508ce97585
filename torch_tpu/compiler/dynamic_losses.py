"""Padded tensors in losses: the padding counts for nothing."""

from __future__ import annotations

from typing import Any

import torch

from torch_tpu.compiler.dynamic_pointwise import broadcast
from torch_tpu.compiler.dynamic_replay import Call, lowers, padded, tensor_of
from torch_tpu.compiler.dynamic_sizes import Dim, is_static

aten = torch.ops.aten

_NONE, _MEAN, _SUM = 0, 1, 2  # the reductions


def _classes_in_front(call: Call) -> tuple[Dim, ...]:
    """The dimensions of the targets, which those of the input have besides the classes."""
    own, target = call.dims("self"), call.dims("target")
    places = [*own[:-1]] if len(own) < 3 else [own[0], *own[2:]]
    classes = own[-1] if len(own) < 3 else own[1]
    if len(places) != len(target) or not all(map(call.same, places, target)):
        raise call.refuse("operands with their padding at different places")
    if not is_static(classes):
        raise call.refuse("a dynamic number of classes")
    return target


@lowers(aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
def _nll_loss(call: Call) -> Any:
    target = _classes_in_front(call)
    ignored = call.number("ignore_index")
    loss, weight = call.run(target=call.masked("target", ignored))
    return padded(loss, target if call["reduction"] == _NONE else []), weight


@lowers(aten.nll_loss_backward.default, aten.nll_loss2d_backward.default)
def _nll_loss_backward(call: Call) -> Any:
    _classes_in_front(call)
    ignored = call.number("ignore_index")
    changes = {"target": call.masked("target", ignored)}
    if call["reduction"] == _NONE:
        changes["grad_output"] = call.masked("grad_output", 0)
    return padded(call.run(**changes), call.dims("self"))


def _operands(call: Call) -> list[Any]:
    names = ("self", "target", "weight", "pos_weight")
    return [call[name] for name in names if call.arguments.get(name) is not None]


@lowers(
    aten.mse_loss.default,
    aten.smooth_l1_loss.default,
    aten.huber_loss.default,
    aten.binary_cross_entropy.default,
    aten.binary_cross_entropy_with_logits.default,
    aten.soft_margin_loss.default,
)
def _loss(call: Call) -> Any:
    dims = broadcast(call, _operands(call))
    if call["reduction"] == _NONE or all(is_static(dim) for dim in dims):
        return padded(call.run(), dims if call["reduction"] == _NONE else [])
    losses = call.replay.masked(padded(call.run(reduction=_NONE), dims), 0)
    total = tensor_of(losses).sum()
    if call["reduction"] == _MEAN:
        total = total / call.replay.count(dims)
    return total.to(call.value.dtype)


@lowers(
    aten.mse_loss_backward.default,
    aten.smooth_l1_loss_backward.default,
    aten.huber_loss_backward.default,
    aten.binary_cross_entropy_backward.default,
    aten.soft_margin_loss_backward.default,
)
def _loss_backward(call: Call) -> Any:
    dims = broadcast(call, _operands(call))
    if call["reduction"] != _MEAN or all(is_static(dim) for dim in dims):
        return padded(call.run(), dims)
    grad = call.tensor("grad_output") / call.replay.count(dims)
    grad = grad.to(call.tensor("grad_output").dtype)
    return padded(call.run(grad_output=grad, reduction=_SUM), dims)
