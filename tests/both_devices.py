"""Runs a function on the device and on the CPU and compares results and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import compare
import torch
from torch.utils import _pytree as pytree

# Relative to the largest expected magnitude, by dtype.
TOLERANCE = {
    torch.float64: 1e-10,
    torch.float32: 2e-5,
    torch.bfloat16: 2e-2,
    torch.float16: 4e-3,
    torch.complex64: 2e-5,
    torch.complex128: 1e-10,
}


def data(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Random numbers of any dtype: normal ones, or small integers."""
    if dtype is torch.bool:
        return torch.rand(shape) < 0.5
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, dtype=torch.complex64 if dtype.is_complex else None).to(dtype)
    return torch.randint(0 if dtype is torch.uint8 else -9, 10, shape, dtype=dtype)


def check(
    function: Callable[..., Any],
    *arguments: Any,
    backward: bool | None = None,
    tolerance: float | None = None,
    gradient_strides: bool = True,
) -> None:
    """Asserts that `function(*arguments)`, and its gradients, are the same on both devices.

    The arguments are on the CPU; tensors among them are copied to the device. Gradients are
    checked when there are floating point inputs, unless `backward` says otherwise. The strides of
    gradients may be left out of the comparison, where the CPU's kernel has a layout of its own.
    """

    def placed(device: str) -> list[Any]:
        def place(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            wants_grad = backward is not False and (value.is_floating_point() or value.is_complex())
            copy = value.detach().to(device) if device != "cpu" else value.detach().clone()
            return copy.requires_grad_(wants_grad)

        return pytree.tree_map(place, list(arguments))

    device_arguments, cpu_arguments = placed(compare.DEVICE), placed("cpu")
    actual = dict(compare.named_tensors(function(*device_arguments)))
    expected = dict(compare.named_tensors(function(*cpu_arguments)))
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        _assert_near(actual[name], value, name, tolerance)

    differentiable = [name for name, value in expected.items() if value.requires_grad]
    if backward is False or not differentiable:
        return
    seeds = [torch.randn_like(expected[name]) for name in differentiable]
    device_leaves = [t for t in pytree.tree_leaves(device_arguments) if _is_leaf(t)]
    cpu_leaves = [t for t in pytree.tree_leaves(cpu_arguments) if _is_leaf(t)]
    actual_grads = torch.autograd.grad(
        [actual[name] for name in differentiable],
        device_leaves,
        [seed.to(compare.DEVICE) for seed in seeds],
        allow_unused=True,
    )
    expected_grads = torch.autograd.grad(
        [expected[name] for name in differentiable], cpu_leaves, seeds, allow_unused=True
    )
    for index, (grad, wanted) in enumerate(zip(actual_grads, expected_grads, strict=True)):
        assert (grad is None) == (wanted is None), f"gradient {index}: {grad} against {wanted}"
        if wanted is not None:
            if not gradient_strides:
                grad, wanted = grad.contiguous(), wanted.contiguous()
            _assert_near(grad, wanted, f"gradient {index}", tolerance)


def _is_leaf(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _assert_near(
    actual: torch.Tensor, expected: torch.Tensor, what: str, tolerance: float | None
) -> None:
    if expected.dtype not in TOLERANCE:
        compare.assert_same(actual, expected, rtol=0, atol=0, what=what)
        return
    rtol = TOLERANCE[expected.dtype] if tolerance is None else tolerance
    finite = expected.detach().abs().to(torch.float64)
    finite = finite[finite.isfinite()]
    scale = float(finite.max()) if finite.numel() else 0.0
    compare.assert_same(actual, expected, rtol=rtol, atol=max(1e-6, rtol * scale), what=what)
