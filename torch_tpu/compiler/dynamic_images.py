"""Padded tensors in the operators of convolutional networks, with a dynamic batch."""

from __future__ import annotations

from typing import Any

import torch

from torch_tpu.compiler.dynamic_replay import Call, lowers, padded, tensor_of
from torch_tpu.compiler.dynamic_sizes import Dim, Padded, is_static, padded_size, static_dim

aten = torch.ops.aten


def _channels(tensor: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor | None:
    """A tensor with an element for each channel, to be broadcast."""
    if tensor is None:
        return None
    return tensor.to(like.dtype).reshape([1, -1] + [1] * (like.dim() - 2))


class _Statistics:
    """A batch that is normalized by its own mean and variance: of its elements, not the padding."""

    def __init__(self, call: Call, name: str) -> None:
        self.replay = call.replay
        self.dims: tuple[Dim, ...] = call.dims(name)
        if not is_static(self.dims[1]):
            raise call.refuse("dynamic channels")
        tensor = call.tensor(name)
        wide = tensor.dtype in (torch.float16, torch.bfloat16)
        self.tensor = tensor.to(torch.float32) if wide else tensor
        self.axes = [axis for axis in range(len(self.dims)) if axis != 1]
        self.count = self.replay.count([self.dims[axis] for axis in self.axes])

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum of the elements of each channel."""
        masked = tensor_of(self.replay.masked(Padded(tensor, self.dims), 0))
        return masked.sum(self.axes)

    def mean(self, tensor: torch.Tensor) -> torch.Tensor:
        """Their mean."""
        return (self.sum(tensor) / self.count).to(tensor.dtype)


@lowers(
    aten._native_batch_norm_legit_functional.default,
    aten._native_batch_norm_legit_no_training.default,
    aten._native_batch_norm_legit.no_stats,
)
def _batch_norm(call: Call) -> Any:
    own = call.dims("input")
    if not call.arguments.get("training", False):
        out, *rest = call.run()
        # Without statistics of the batch, PyTorch may say that there are none.
        for place in (1, 2):
            if call.result_sizes(place) == (0,):
                rest[place - 1] = rest[place - 1].narrow(0, 0, 0)
        return padded(out, own), *rest
    batch = _Statistics(call, "input")
    x = batch.tensor
    mean = batch.mean(x)
    centered = x - _like(mean, x)
    variance = batch.mean(centered * centered)
    invstd = torch.rsqrt(variance + call.number("eps"))
    out = centered * _like(invstd, x)
    weight, bias = _channels(call["weight"], x), _channels(call["bias"], x)
    if weight is not None:
        out = out * weight
    if bias is not None:
        out = out + bias
    results: list[Any] = [padded(out.to(call.tensor("input").dtype), own), mean, invstd]
    if call.target is aten._native_batch_norm_legit_functional.default:
        momentum = call.number("momentum")
        unbiased = variance * (batch.count / (batch.count - 1)).to(variance.dtype)
        for name, value in (("running_mean", mean), ("running_var", unbiased)):
            running = call[name]
            results.append((running * (1 - momentum) + value * momentum).to(running.dtype))
    return tuple(results)


def _like(value: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    broadcast = _channels(value, like)
    assert broadcast is not None
    return broadcast


@lowers(aten.native_batch_norm_backward.default)
def _batch_norm_backward(call: Call) -> Any:
    own = call.dims("input")
    if not all(map(call.same, own, call.dims("grad_out"))):
        raise call.refuse("operands with their padding at different places")
    masked = {name: call.masked(name, 0) for name in ("grad_out", "input")}
    if not call["train"]:
        grad, weight, bias = call.run(**masked)
        return None if grad is None else padded(grad, own), weight, bias
    batch = _Statistics(call, "input")
    x = batch.tensor
    g = tensor_of(masked["grad_out"]).to(x.dtype)
    invstd = _like(call["save_invstd"], x)
    normal = (x - _like(call["save_mean"], x)) * invstd
    bias = batch.sum(g)
    weight = batch.sum(g * normal)
    grad = g - (_like(bias, x) + normal * _like(weight, x)) / batch.count
    scale = _channels(call["weight"], x)
    grad = grad * invstd * (1 if scale is None else scale)
    given: list[Any] = [padded(grad.to(call.value[0].dtype), own), weight, bias]
    wanted = call["output_mask"]
    for place in (1, 2):
        if wanted[place]:
            given[place] = given[place].to(call.value[place].dtype)
    return tuple(one if want else None for one, want in zip(given, wanted, strict=True))


@lowers(aten.native_group_norm.default)
def _group_norm(call: Call) -> Any:
    own = call.dims("input")
    if any(not is_static(dim) for dim in own[1:]):
        raise call.refuse("over a dynamic dimension")
    out, mean, rstd = call.run(N=padded_size(own[0]))
    stats = [own[0], static_dim(call.number("group"))]
    return padded(out, own), padded(mean, stats), padded(rstd, stats)


@lowers(aten.native_group_norm_backward.default)
def _group_norm_backward(call: Call) -> Any:
    own = call.dims("input")
    if any(not is_static(dim) for dim in own[1:]):
        raise call.refuse("over a dynamic dimension")
    masked = {name: call.masked(name, 0) for name in ("grad_out", "input", "mean", "rstd")}
    grad, weight, bias = call.run(**masked, N=padded_size(own[0]))
    return None if grad is None else padded(grad, own), weight, bias


@lowers(
    aten.max_pool2d_with_indices.default,
    aten.max_pool3d_with_indices.default,
    aten.avg_pool1d.default,
    aten.avg_pool2d.default,
    aten.avg_pool3d.default,
    aten._adaptive_avg_pool2d.default,
    aten._adaptive_avg_pool3d.default,
    aten.adaptive_max_pool2d.default,
    aten.adaptive_max_pool3d.default,
    aten.upsample_linear1d.default,
    aten.upsample_bilinear2d.default,
    aten.upsample_trilinear3d.default,
    aten.upsample_bicubic2d.default,
)
def _pool(call: Call) -> Any:
    own = call.dims("self")
    _static_images(call, own)
    result = call.run()
    if not isinstance(result, tuple):
        return padded(result, _pooled(own, call.value))
    return tuple(
        padded(one, _pooled(own, value)) for one, value in zip(result, call.value, strict=True)
    )


def _static_images(call: Call, own: tuple[Dim, ...]) -> None:
    # Only the first of four or five dimensions is certainly none of the image's.
    if any(not is_static(dim) for dim in own[1:]) or (len(own) < 4 and not is_static(own[0])):
        raise call.refuse("over a dynamic dimension")


def _pooled(own: tuple[Dim, ...], value: torch.Tensor) -> list[Dim]:
    return [own[0], *(static_dim(int(size)) for size in value.shape[1:])]


@lowers(
    aten.max_pool2d_with_indices_backward.default,
    aten.max_pool3d_with_indices_backward.default,
    aten.avg_pool2d_backward.default,
    aten.avg_pool3d_backward.default,
    aten._adaptive_avg_pool2d_backward.default,
    aten._adaptive_avg_pool3d_backward.default,
    aten.adaptive_max_pool2d_backward.default,
    aten.adaptive_max_pool3d_backward.default,
)
def _pool_backward(call: Call) -> Any:
    own = call.dims("self")
    _static_images(call, own)
    changes = {
        name: call.masked(name, 0) for name in ("grad_output", "indices") if name in call.arguments
    }
    return padded(call.run(**changes), own)


@lowers(
    aten.upsample_linear1d_backward.default,
    aten.upsample_bilinear2d_backward.default,
    aten.upsample_trilinear3d_backward.default,
    aten.upsample_bicubic2d_backward.default,
)
def _resized_backward(call: Call) -> Any:
    own = call.dims("grad_output")
    _static_images(call, own)
    sizes = [padded_size(own[0]), *(int(size) for size in call.result_sizes()[1:])]
    return padded(call.run(input_size=sizes), _pooled(own, call.value))
