"""Eight-bit floats and wide unsigned integers: storage, casts and arithmetic."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

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
@pytest.mark.parametrize("out", [torch.float32, torch.bfloat16])
def test_scaled_mm(dtype: torch.dtype, out: torch.dtype) -> None:
    a, b = torch.randn(16, 32).to(torch.float8_e4m3fn), torch.randn(16, 32).to(dtype)
    half, two = torch.tensor(0.5), torch.tensor(2.0)

    def product(device: str) -> torch.Tensor:
        return torch._scaled_mm(
            a.to(device),
            b.to(device).t(),
            scale_a=half.to(device),
            scale_b=two.to(device),
            out_dtype=out,
        )

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
