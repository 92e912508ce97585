"""Tensors made from nothing but numbers, against the CPU."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import compare
import pytest
import torch
from both_devices import check, data

pytestmark = pytest.mark.usefixtures("no_fallback")

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
OTHERS = [torch.bool, torch.complex64]


def same(make: Callable[..., torch.Tensor], *arguments: Any, **options: Any) -> None:
    """Asserts that `make` gives the same tensor on both devices."""
    tolerances = {torch.bfloat16: 1e-2, torch.float16: 2e-3}
    actual = make(*arguments, device=compare.DEVICE, **options)
    expected = make(*arguments, device="cpu", **options)
    rtol = tolerances.get(expected.dtype)
    scale = float(expected.abs().max()) if rtol and expected.numel() else 0.0
    compare.assert_same(actual, expected, rtol=rtol, atol=rtol and rtol * scale)


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS + OTHERS)
def test_filled(dtype: torch.dtype) -> None:
    for shape in [(2, 3), (), (0, 4)]:
        same(torch.zeros, shape, dtype=dtype)
        same(torch.ones, shape, dtype=dtype)
        same(torch.full, shape, 3, dtype=dtype)
    x = data(2, 3, dtype=dtype)
    check(lambda x: (torch.zeros_like(x), torch.ones_like(x)), x, backward=False)
    check(lambda x: (torch.full_like(x, 2), x.new_full((4,), 1)), x, backward=False)


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS + OTHERS)
def test_fills_in_place(dtype: torch.dtype) -> None:
    def run(x: torch.Tensor, value: torch.Tensor) -> Any:
        a, b, c = x.clone(), x.clone(), x.clone()
        a.fill_(3)
        b[1:].fill_(value)
        c[:, ::2].zero_()
        return a, b, c

    check(run, data(4, 5, dtype=dtype), data(dtype=dtype), backward=False)


def test_fill_is_exact() -> None:
    same(torch.full, (2,), 2**62 + 1, dtype=torch.int64)
    same(torch.full, (2,), 0.1, dtype=torch.float64)
    same(torch.full, (2,), float("-inf"))
    same(torch.full, (2,), float("nan"))
    same(torch.full, (2,), 1 + 2j, dtype=torch.complex64)


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
@pytest.mark.parametrize(
    "bounds", [(7,), (0,), (2, 9), (1, 9, 3), (9, 2, -2), (0.5, 5.5, 1.5), (4, 4)]
)
def test_arange(bounds: tuple[float, ...], dtype: torch.dtype) -> None:
    if dtype is torch.uint8 and min(bounds) < 0:
        pytest.skip("a negative step does not fit the dtype")
    same(torch.arange, *bounds, dtype=dtype)


def test_arange_defaults_and_large_numbers() -> None:
    same(torch.arange, 5)
    same(torch.arange, 5.0)
    same(torch.arange, 0, 1, 0.001)
    same(torch.arange, 2**40, 2**40 + 3)
    same(torch.arange, 20_000_000, 20_000_003, dtype=torch.float32)
    same(torch.arange, 300, dtype=torch.bfloat16)


def test_range(recwarn: pytest.WarningsRecorder) -> None:
    same(torch.range, 1, 5, 2)
    same(torch.range, 0.5, 3.0, 0.25, dtype=torch.float64)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.int32, torch.complex64])
@pytest.mark.parametrize("bounds", [(0, 1, 5), (-3, 8, 24), (2, 2, 3), (1, 9, 1), (5, -5, 11)])
def test_linspace_and_logspace(bounds: tuple[float, float, int], dtype: torch.dtype) -> None:
    start, end, steps = bounds
    same(torch.linspace, start, end, steps, dtype=dtype)
    same(torch.logspace, start / 4, end / 4, steps, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_linspace_of_whole_steps(dtype: torch.dtype) -> None:
    """No step is a bit short of a whole number."""
    for start, end, steps in [(50, 1, 50), (0, 97, 98), (10, 0, 6)]:
        same(torch.linspace, start, end, steps, dtype=dtype)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.bfloat16, torch.int64, torch.complex64])
def test_logspace_of_one_step(dtype: torch.dtype) -> None:
    """The exponent is not rounded to the result's dtype."""
    same(torch.logspace, 4.3, -3, 1, dtype=dtype)
    same(torch.logspace, 2.3, 7, 1, 5.0, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_linspace_of_halves_rounds_each_step(dtype: torch.dtype) -> None:
    """What is left in the middle of an interval around 0 is what PyTorch's rounding leaves."""
    for start, end, steps in [(-10, 10, 7), (-10, 10, 51), (3.5, -3.5, 8), (0, 1, 100)]:
        x = torch.linspace(start, end, steps, dtype=dtype, device=compare.DEVICE)
        torch.testing.assert_close(
            x.cpu(), torch.linspace(start, end, steps, dtype=dtype), rtol=0, atol=0
        )


def test_steps_between_bools_are_refused() -> None:
    for make in (torch.linspace, torch.logspace):
        for steps in (0, 1):
            same(make, 0, 1, steps, dtype=torch.bool)
        with pytest.raises(NotImplementedError) as refused:
            make(0, 1, 2, dtype=torch.bool)
        with pytest.raises(NotImplementedError, match=re.escape(str(refused.value))):
            make(0, 1, 2, dtype=torch.bool, device=compare.DEVICE)


@pytest.mark.parametrize("base", [0.0, math.inf, -math.inf, math.nan, 1e38])
def test_logspace_of_limits(base: float) -> None:
    for start, end in [(-2, 2), (1 + 1j, 2 - 1j)]:
        parts = [
            torch.view_as_real(
                torch.logspace(start, end, 5, base, dtype=torch.complex64, device=device).cpu()
            )
            for device in (compare.DEVICE, "cpu")
        ]
        torch.testing.assert_close(*parts, rtol=1e-5, atol=1e-37, equal_nan=True)


def test_linspace_of_tensors_and_of_none() -> None:
    same(torch.linspace, 0, 1, 0)
    for device in ("cpu", compare.DEVICE):
        x = torch.linspace(torch.tensor(0.0, device=device), 3, 7, device=device)
        torch.testing.assert_close(x.cpu(), torch.linspace(0, 3, 7))


def test_linspace_ends_exactly(device: torch.device) -> None:
    x = torch.linspace(0.1, 0.7, 1001, device=device)
    assert x[0].item() == torch.tensor(0.1).item()
    assert x[-1].item() == torch.tensor(0.7).item()


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.complex64])
def test_eye(dtype: torch.dtype) -> None:
    for shape in [(3,), (3, 5), (5, 2), (4, 0), (0,)]:
        same(torch.eye, *shape, dtype=dtype)


@pytest.mark.parametrize("make", [torch.tril_indices, torch.triu_indices])
def test_triangle_indices(make: Callable[..., torch.Tensor]) -> None:
    shapes = [(3, 4, 0), (5, 2, 1), (5, 2, -3), (4, 4, 7), (4, 4, -7), (0, 3, 0), (3, 0, 0)]
    for shape in shapes:
        same(make, *shape)
    same(make, 3, 3, dtype=torch.int32)


def test_windows() -> None:
    for make in (torch.hann_window, torch.hamming_window, torch.blackman_window):
        same(make, 8)
    same(torch.bartlett_window, 9, periodic=False)
