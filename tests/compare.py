"""Comparison of device results with the ones PyTorch's CPU kernels give."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

# The device under test. conftest.py sets it from `pytest --device`.
DEVICE = "tpu"


def dense_strides(tensor: torch.Tensor) -> list[int]:
    """Strides that address memory: those of dimensions longer than one, none if it is empty."""
    if tensor.numel() == 0:
        return []
    return [s for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n > 1]


def assert_same(
    actual: torch.Tensor,
    expected: torch.Tensor,
    rtol: float | None = None,
    atol: float | None = None,
    what: str = "tensor",
) -> None:
    """Asserts that a device tensor equals a CPU tensor in device, dtype, shape, strides and values.

    Without `rtol` and `atol`, the tolerances are torch.testing's defaults for the dtype.
    """
    assert actual.device.type == DEVICE, f"{what}: is on {actual.device}, expected {DEVICE}"
    assert expected.device.type == "cpu", f"{what}: the expected value is on {expected.device}"
    assert actual.dtype == expected.dtype, f"{what}: {actual.dtype}, expected {expected.dtype}"
    assert actual.shape == expected.shape, (
        f"{what}: shape {list(actual.shape)}, expected {list(expected.shape)}"
    )
    assert actual.requires_grad == expected.requires_grad, (
        f"{what}: requires_grad {actual.requires_grad}, expected {expected.requires_grad}"
    )
    assert dense_strides(actual) == dense_strides(expected), (
        f"{what}: strides {actual.stride()}, expected {expected.stride()} "
        f"of shape {list(expected.shape)}"
    )
    torch.testing.assert_close(
        actual.detach().cpu(),
        expected.detach(),
        rtol=rtol,
        atol=atol,
        equal_nan=True,
        msg=lambda text: f"{what}: {text}",
    )


def assert_close_to_scale(
    actual: torch.Tensor, expected: torch.Tensor, rtol: float, what: str, floor: float = 1e-6
) -> None:
    """Like `assert_same`, with `rtol` also relative to the largest expected magnitude.

    A sum whose terms cancel has no relative accuracy of its own; `floor` is the absolute error
    allowed where the exact result is zero (the gradient of an attention key bias, for example).
    """
    scale = float(expected.detach().abs().max()) if expected.numel() else 0.0
    assert_same(actual, expected, rtol=rtol, atol=max(floor, rtol * scale), what=what)


def named_tensors(value: Any, name: str = "output") -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the tensors inside nested tuples, lists and mappings with a path to each."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from named_tensors(item, f"{name}.{key}")
    elif isinstance(value, (tuple, list)):
        for index, item in enumerate(value):
            yield from named_tensors(item, f"{name}[{index}]")


def dispatch_stats() -> dict[str, Any]:
    """Returns the device's counters when other threads have compiled what was asked for so far."""
    torch.accelerator.synchronize()
    return dict(torch.tpu.dispatch_stats())  # type: ignore[attr-defined]


def fallback_counts() -> dict[str, int]:
    """Returns how often each op was computed on the CPU instead, so far in this process."""
    return dict(dispatch_stats()["fallbacks"]) if DEVICE == "tpu" else {}
