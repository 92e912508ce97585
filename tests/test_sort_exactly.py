"""Sorting keeps every value bit by bit and the order of equal ones."""

from __future__ import annotations

import math

import compare
import pytest
import torch

pytestmark = pytest.mark.usefixtures("no_fallback")

FLOATS = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]


def of_any_kind(dtype: torch.dtype, n: int) -> torch.Tensor:
    """Numbers with many ties: both zeros, subnormal numbers, infinities, NaN; or extremes."""
    if dtype.is_floating_point:
        special = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-40, -1e-40, 6e-8, 1.0, -1.0]
        x = torch.randn(3, n).to(dtype)
        some = torch.tensor(special).to(dtype)
        x[:, ::2] = some[torch.randint(0, len(special), (3, (n + 1) // 2))]
        return x
    info = torch.iinfo(dtype)
    x = torch.randint(info.min, info.max, (3, n), dtype=dtype)
    x[:, ::2] %= 5
    x[0, 0], x[1, 0] = info.min, info.max
    return x


def assert_identical(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal, zeros with their signs, except that any NaN is as good as another."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
    if expected.is_floating_point():
        number = ~expected.isnan()
        assert torch.equal(actual.signbit() & number, expected.signbit() & number)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
@pytest.mark.parametrize("n", [2, 50, 40_000])
def test_stable_sort(dtype: torch.dtype, n: int) -> None:
    x = of_any_kind(dtype, n)
    for descending in (False, True):
        result = torch.sort(x.to(compare.DEVICE), stable=True, descending=descending)
        expected = torch.sort(x, stable=True, descending=descending)
        assert_identical(result.values.cpu(), expected.values)
        assert_identical(result.indices.cpu(), expected.indices)


def test_small_numbers_of_a_wide_type() -> None:
    x = torch.randint(-9, 9, (4, 300))
    for descending in (False, True):
        result = torch.sort(x.to(compare.DEVICE), dim=0, stable=True, descending=descending)
        expected = torch.sort(x, dim=0, stable=True, descending=descending)
        assert_identical(result.values.cpu(), expected.values)
        assert_identical(result.indices.cpu(), expected.indices)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
@pytest.mark.parametrize("largest", [False, True])
def test_topk_values(dtype: torch.dtype, largest: bool) -> None:
    x = of_any_kind(dtype, 50)
    result = torch.topk(x.to(compare.DEVICE), 7, largest=largest)
    expected = torch.topk(x, 7, largest=largest).values
    torch.testing.assert_close(result.values.cpu(), expected, rtol=0, atol=0, equal_nan=True)
    taken = x.gather(1, result.indices.cpu())
    torch.testing.assert_close(taken, expected, rtol=0, atol=0, equal_nan=True)
