"""Eight-bit floats and wide unsigned integers: storage, casts and arithmetic."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn.functional import ScalingType

FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2]
UNSIGNED = {
    torch.uint16: [0, 1, 2, 300, 2**15, 2**16 - 1],
    torch.uint32: [0, 1, 2, 300, 2**31, 2**32 - 1],
    torch.uint64: [0, 1, 2, 300, 2**63, 2**64 - 1],
}
# Rounded up and down, below the smallest number, beyond the largest, and none at all.
NUMBERS = [0.0, 1.0, -1.5, 3.3, 448.0, 500.0, 1e5, 1e-3, 2**-10 * 1.5, float("inf"), float("nan")]


def assert_same_bits(function: Callable[[str], torch.Tensor]) -> None:
    """Both devices give the same elements, compared as bytes where a comparison is missing."""
    actual, expected = function("tpu").cpu(), function("cpu")
    assert actual.dtype == expected.dtype and actual.shape == expected.shape
    if expected.dtype in FLOAT8:
        actual, expected = actual.float(), expected.float()
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("wide", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("dtype", FLOAT8)
def test_float8_casts(dtype: torch.dtype, wide: torch.dtype) -> None:
    numbers = torch.tensor(NUMBERS).to(wide)
    assert_same_bits(lambda device: numbers.to(device).to(dtype))
    assert_same_bits(lambda device: numbers.to(dtype).to(device).to(wide))


@pytest.mark.parametrize("dtype", FLOAT8)
def test_float8_storage(dtype: torch.dtype) -> None:
    numbers = torch.tensor(NUMBERS[:10]).to(dtype)
    assert_same_bits(lambda device: numbers.to(device).reshape(2, 5).t().contiguous())
    assert_same_bits(lambda device: numbers.to(device).view(torch.uint8))
    assert_same_bits(lambda device: torch.cat([numbers.to(device)[3:], numbers.to(device)]))
    assert_same_bits(lambda device: torch.full((3,), 2.5, dtype=dtype, device=device))


@pytest.mark.parametrize("dtype", FLOAT8)
@pytest.mark.parametrize("out", [torch.float32, torch.bfloat16, None])
def test_scaled_mm(dtype: torch.dtype, out: torch.dtype | None) -> None:
    a, b = torch.randn(16, 32).to(torch.float8_e4m3fn), torch.randn(16, 32).to(dtype)
    half, two = torch.tensor(0.5), torch.tensor(2.0)

    def product(device: str) -> torch.Tensor:
        return torch._scaled_mm(
            a.to(device),
            b.to(device).t(),
            scale_a=half.to(device),
            scale_b=two.to(device),
            out_dtype=out,
        ).float()

    torch.testing.assert_close(product("tpu").cpu(), product("cpu"))


def test_scaled_mm_saturates() -> None:
    a, b = torch.ones(4, 16).to(torch.float8_e4m3fn), torch.ones(16, 16).to(torch.float8_e4m3fn)
    scale = torch.tensor(100.0)
    assert_same_bits(
        lambda device: torch._scaled_mm(
            a.to(device), b.to(device).t(), scale.to(device), scale.to(device)
        )
    )


@pytest.mark.parametrize("recipe", [ScalingType.TensorWise, ScalingType.RowWise])
def test_scaled_mm_with_a_recipe(recipe: ScalingType) -> None:
    a, b = torch.randn(15, 32).to(torch.float8_e4m3fn), torch.randn(16, 32).to(torch.float8_e4m3fn)
    by_row = recipe == ScalingType.RowWise
    scale_a, scale_b = (torch.rand(15, 1), torch.rand(1, 16)) if by_row else torch.rand(2, 1)

    def product(device: str) -> torch.Tensor:
        scales = (scale_a.to(device), recipe, scale_b.to(device), recipe)
        return torch.nn.functional.scaled_mm(a.to(device), b.to(device).t(), *scales)

    torch.testing.assert_close(product("tpu").cpu(), product("cpu"))


@pytest.mark.parametrize("dtype", UNSIGNED, ids=str)
def test_unsigned_integers(dtype: torch.dtype) -> None:
    numbers = torch.tensor(UNSIGNED[dtype], dtype=dtype)
    for other in (torch.float64, torch.float32, torch.int64, torch.uint8, torch.bool, *UNSIGNED):
        assert_same_bits(lambda device, other=other: numbers.to(device).to(other))  # type: ignore[misc]
    assert_same_bits(lambda device: numbers.to(device)[torch.tensor([1, 5], device=device)])
    assert_same_bits(lambda device: numbers.to(device) * numbers.to(device))
    assert_same_bits(lambda device: numbers.to(device) == numbers.to(device).clone())
    assert_same_bits(lambda device: numbers.to(device).sum())
