"""Interpolation of images, left whole in graphs.

PyTorch takes these operators apart before a backend sees them: into gathers of each pixel's corners
and arithmetic on them, which reads an image four or sixteen times, rounds bytes otherwise than the
operators do, and has scatters for its gradient. The device's rules for them are two small products.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

import torch
from torch._C import DispatchKey

_aten = torch.ops.aten
_PACKETS = (
    _aten.upsample_linear1d,
    _aten.upsample_bilinear2d,
    _aten.upsample_trilinear3d,
    _aten.upsample_bicubic2d,
)
# The export of a graph that was traced before dispatches here, on example arguments of the CPU or
# without data.
_ELSEWHERE = (DispatchKey.AutogradCPU, DispatchKey.AutogradMeta)
_exports_lock = threading.Lock()
_num_exports = 0


def install(decompositions: ModuleType) -> None:
    """For tensors of the device, once ``torch._decomp.decompositions`` is there."""
    _add(DispatchKey.AutogradPrivateUse1, decompositions)


@contextlib.contextmanager
def whole_on_cpu() -> Iterator[None]:
    """For tensors of the CPU as well. In other threads too, to which it makes no difference: the
    compilers there know how to take the operators apart."""
    global _num_exports
    import torch._decomp.decompositions as decompositions

    with _exports_lock:
        _num_exports += 1
        if _num_exports == 1:
            for key in _ELSEWHERE:
                _add(key, decompositions)
    try:
        yield
    finally:
        with _exports_lock:
            _num_exports -= 1
            if _num_exports == 0:
                for key in _ELSEWHERE:
                    _remove(key)


def _overloads() -> Iterator[Any]:
    for packet in _PACKETS:
        for op in (packet.vec, packet.default):
            if DispatchKey.Autograd in op.py_kernels:
                yield op


def _add(key: DispatchKey, decompositions: ModuleType) -> None:
    for op in _overloads():
        op.py_impl(key)(_kernel(op, decompositions))


def _remove(key: DispatchKey) -> None:
    for op in _overloads():
        del op.py_kernels[key]
        op._dispatch_cache.clear()


def _kernel(op: Any, decompositions: ModuleType) -> Callable[..., torch.Tensor]:
    takes_apart = op.py_kernels[DispatchKey.Autograd]
    output_size_of = decompositions.upsample_compute_output_size

    def whole(*args: Any, **kwargs: Any) -> torch.Tensor:
        result: torch.Tensor = op._op_dk(DispatchKey.Autograd, *args, **kwargs)
        return result

    def whole_with_sizes(
        image: torch.Tensor,
        output_size: Sequence[int] | None,
        align_corners: bool,
        scale_factors: Sequence[float] | None,
    ) -> torch.Tensor:
        size = output_size_of(image.shape, output_size, scale_factors)
        scales: Sequence[float | None] = scale_factors or [None] * len(size)
        result: torch.Tensor = op.overloadpacket.default(image, size, align_corners, *scales)
        return result

    def kernel(image: torch.Tensor, output_size: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        sizes = [*image.shape[2:], *(output_size or ())]
        # Taken apart, symbolic sizes are numbers of one program; but not those of its gradient.
        # Bytes would differ.
        if (
            any(isinstance(size, torch.SymInt) for size in sizes)
            and image.dtype != torch.uint8
            and not (image.requires_grad and torch.is_grad_enabled())
        ):
            result: torch.Tensor = takes_apart(image, output_size, *args, **kwargs)
            return result
        call = whole if op is op.overloadpacket.default else whole_with_sizes
        return call(image, output_size, *args, **kwargs)

    return kernel
