"""Compares what an operator gave on the device with what it gave on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_tpu.testing.cases import Failure
from torch_tpu.testing.placement import tensors_in
from torch_tpu.testing.tolerance import Tolerance

ToleranceOf = Callable[[torch.dtype], Tolerance]


def dense_strides(tensor: torch.Tensor) -> list[int]:
    """Strides that address memory: those of dimensions longer than one, none if it is empty."""
    if tensor.layout is not torch.strided or tensor.numel() == 0:
        return []
    return [s for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n > 1]


def _kind(value: Any) -> str:
    return "tensor" if isinstance(value, torch.Tensor) else type(value).__name__


def compare(
    actual: Any,
    expected: Any,
    tolerance: ToleranceOf,
    *,
    device: str,
    values: bool = True,
    dtypes: bool = True,
    what: str = "output",
) -> Failure | None:
    """The first difference between results, if any.

    Without `values`, only shapes, dtypes and devices of tensors count; without `dtypes`, those do
    not.
    """
    if isinstance(expected, torch.Tensor):
        if not isinstance(actual, torch.Tensor):
            return Failure("metadata", f"{what} is a {_kind(actual)}, expected a tensor")
        return _compare_tensors(actual, expected, tolerance, device, values, dtypes, what)
    if isinstance(expected, (list, tuple)):
        if not isinstance(actual, (list, tuple)) or len(actual) != len(expected):
            return Failure("metadata", f"{what} is {_kind(actual)}, expected {_kind(expected)}")
        for i, (one, other) in enumerate(zip(actual, expected, strict=True)):
            found = compare(
                one,
                other,
                tolerance,
                device=device,
                values=values,
                dtypes=dtypes,
                what=f"{what}[{i}]",
            )
            if found is not None:
                return found
        return None
    if isinstance(expected, dict):
        if not isinstance(actual, dict) or actual.keys() != expected.keys():
            return Failure("metadata", f"{what} has other keys")
        for key in expected:
            found = compare(
                actual[key],
                expected[key],
                tolerance,
                device=device,
                values=values,
                dtypes=dtypes,
                what=f"{what}.{key}",
            )
            if found is not None:
                return found
        return None
    if isinstance(expected, (bool, int, float, complex)):
        if not values and type(actual) is type(expected):
            return None
        dtype = {float: torch.float64, complex: torch.complex128}.get(type(expected), torch.int64)
        return _close(torch.tensor(actual), torch.tensor(expected), tolerance(dtype), what)
    if type(actual) is not type(expected):
        return Failure("metadata", f"{what} is a {_kind(actual)}, expected {_kind(expected)}")
    return None


def _compare_tensors(
    actual: torch.Tensor,
    expected: torch.Tensor,
    tolerance: ToleranceOf,
    device: str,
    values: bool,
    dtypes: bool,
    what: str,
) -> Failure | None:
    for name, given, wanted in (
        ("device", actual.device.type, device),
        ("dtype", actual.dtype if dtypes else expected.dtype, expected.dtype),
        ("layout", actual.layout, expected.layout),
        ("shape", list(actual.shape), list(expected.shape)),
        ("requires_grad", actual.requires_grad, expected.requires_grad),
    ):
        if given != wanted:
            return Failure("metadata", f"{what}: {name} {given}, expected {wanted}")
    if not values:
        return None
    actual, expected = actual.detach().cpu().to(expected.dtype), expected.detach()
    if expected.layout is not torch.strided:
        actual, expected = actual.to_dense(), expected.to_dense()
    return _close(actual, expected, tolerance(expected.dtype), what)


def _close(
    actual: torch.Tensor, expected: torch.Tensor, tolerance: Tolerance, what: str
) -> Failure | None:
    try:
        torch.testing.assert_close(
            actual, expected, rtol=tolerance.rtol, atol=tolerance.atol, equal_nan=True
        )
    except AssertionError as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        return Failure("value", f"{what}: {' '.join(lines[1:] or lines)}")
    return None


def stride_difference(actual: Any, expected: Any) -> bool:
    """Whether some tensor is laid out otherwise than the CPU's."""
    if isinstance(expected, torch.Tensor):
        return isinstance(actual, torch.Tensor) and dense_strides(actual) != dense_strides(expected)
    if isinstance(expected, (list, tuple)) and isinstance(actual, (list, tuple)):
        return any(stride_difference(a, e) for a, e in zip(actual, expected, strict=False))
    return False


def as_accurate(actual: Any, expected: Any, reference: Any, tolerance: ToleranceOf) -> bool:
    """Whether device results are as near to a more precise reference as can be asked for.

    Asked where the CPU's results and the device's differ by more than the tolerance: each has
    rounding errors of its own, in sums whose terms cancel for instance. A tensor's largest error
    may be as large as the CPU's, or the relative tolerance times the tensor's largest element. In
    dtypes that have as many digits, the results have to be within the 1e-3, relative and absolute,
    that PyTorch allows between CUDA and the CPU.
    """
    tensors = [tensors_in(value) for value in (actual, expected, reference)]
    if not tensors[0] or len({len(found) for found in tensors}) != 1:
        return False
    for triple in zip(*tensors, strict=True):
        a, e, r = (t.detach().cpu() for t in triple)
        a = a.to(e.dtype)
        allowed = tolerance(e.dtype)
        if _close(a, e, allowed, "") is not None and not _near(a, e, r, allowed.rtol):
            return False
    return True


def _near(
    actual: torch.Tensor, expected: torch.Tensor, reference: torch.Tensor, rtol: float
) -> bool:
    if actual.shape != reference.shape or expected.shape != reference.shape:
        return False
    if not (expected.is_floating_point() or expected.is_complex()):
        return torch.equal(actual, expected)
    cross_check = Tolerance(1e-3, 1e-3)
    if rtol < cross_check.rtol and _close(actual, expected, cross_check, "") is not None:
        return False
    wide = torch.complex128 if expected.is_complex() else torch.float64
    # What the result could be at best is the reference, rounded.
    a, e, r = (t.to(wide) for t in (actual, expected, reference.to(expected.dtype)))
    finite = r.isfinite()
    if not torch.equal(a.isfinite(), finite) or not torch.equal(a.isnan(), r.isnan()):
        return False
    if not bool(finite.any()):
        return torch.equal(a[~r.isnan()], r[~r.isnan()])
    of_cpu = (e - r).abs()[finite & e.isfinite()]
    scale = rtol * float(r[finite].abs().max())
    allowed = max(float(of_cpu.max()) if of_cpu.numel() else 0.0, scale)
    return float((a - r).abs()[finite].max()) <= allowed
