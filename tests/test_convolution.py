"""Convolutions and their gradients against the CPU's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from both_devices import check, data
from torch.nn import functional

pytestmark = pytest.mark.usefixtures("no_fallback")

# (input, weight, options)
CONVOLUTIONS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 10), (4, 3, 3), {}),
    ((3, 10), (4, 3, 3), {"padding": 1}),
    ((2, 4, 11), (6, 2, 4), {"stride": 2, "padding": 3, "dilation": 2, "groups": 2}),
    ((2, 3, 8, 9), (4, 3, 3, 3), {}),
    ((2, 3, 8, 9), (4, 3, 1, 1), {}),
    ((3, 8, 9), (4, 3, 3, 2), {"padding": (1, 0)}),
    ((2, 3, 8, 9), (4, 3, 3, 2), {"stride": 2, "padding": 1}),
    ((2, 3, 8, 9), (4, 3, 3, 2), {"stride": (3, 2), "padding": (2, 1), "dilation": (2, 1)}),
    ((2, 3, 9, 9), (4, 3, 2, 2), {"stride": 3}),
    ((2, 3, 9, 9), (4, 3, 1, 1), {"stride": 2, "padding": 1}),
    ((2, 4, 8, 8), (4, 1, 3, 3), {"groups": 4, "padding": 1}),
    ((2, 4, 8, 8), (8, 1, 3, 3), {"groups": 4, "stride": 2}),
    ((2, 4, 8, 8), (6, 2, 3, 3), {"groups": 2, "padding": "same"}),
    ((2, 3, 16, 16), (8, 3, 4, 4), {"stride": 4}),
    ((0, 3, 8, 8), (4, 3, 3, 3), {}),
    ((2, 2, 5, 6, 7), (4, 2, 3, 3, 3), {"padding": 1}),
    ((2, 2, 5, 6, 7), (4, 1, 2, 3, 2), {"stride": (1, 2, 2), "groups": 2}),
]
TRANSPOSED: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 6), (3, 4, 3), {}),
    ((2, 4, 6), (4, 3, 4), {"stride": 2, "padding": 1, "groups": 2}),
    ((2, 3, 5, 6), (3, 4, 3, 3), {}),
    ((3, 5, 6), (3, 4, 3, 3), {"stride": 2, "padding": 1, "output_padding": 1}),
    ((2, 3, 5, 6), (3, 4, 3, 2), {"stride": (2, 3), "padding": (2, 0), "dilation": (2, 1)}),
    ((2, 3, 5, 6), (3, 4, 2, 2), {"stride": 3, "output_padding": (2, 1)}),
    ((2, 3, 5, 6), (3, 4, 1, 1), {"padding": 1}),
    ((2, 3, 5, 6), (3, 4, 2, 2), {"stride": 2}),
    ((2, 3, 5, 6), (3, 4, 1, 3), {"stride": (2, 3)}),
    ((2, 3, 6), (3, 4, 2), {"stride": 4, "output_padding": 3}),
    ((2, 3, 4, 4), (3, 4, 2, 3), {"stride": 2, "dilation": 4, "output_padding": 3}),
    ((2, 4, 5, 6), (4, 1, 3, 3), {"stride": 2, "groups": 4}),
    ((2, 4, 5, 6), (4, 3, 3, 3), {"stride": 2, "groups": 2, "output_padding": 1}),
    ((1, 2, 3, 4, 5), (2, 3, 2, 3, 3), {"stride": 2, "padding": 1}),
]


def run(name: str, bias: bool, case: tuple[Any, Any, dict[str, Any]], dtype: torch.dtype) -> None:
    shape, kernel, options = case
    dimensions = len(kernel) - 2
    function = getattr(functional, f"{name}{dimensions}d")
    groups = options.get("groups", 1)
    channels = kernel[0] if name == "conv" else kernel[1] * groups
    arguments = [data(*shape, dtype=dtype), data(*kernel, dtype=dtype)]
    if bias:
        arguments.append(data(channels, dtype=dtype))
    check(lambda *a: function(*a, **options), *arguments)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", CONVOLUTIONS, ids=str)
def test_convolution(case: Any, dtype: torch.dtype) -> None:
    run("conv", True, case, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", TRANSPOSED, ids=str)
def test_transposed_convolution(case: Any, dtype: torch.dtype) -> None:
    run("conv_transpose", True, case, dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.complex64], ids=str)
def test_other_dtypes(dtype: torch.dtype) -> None:
    run("conv", False, CONVOLUTIONS[6], dtype)
    run("conv_transpose", False, TRANSPOSED[3], dtype)


def test_integer_convolution() -> None:
    run("conv", False, CONVOLUTIONS[6], torch.int64)


def test_only_wanted_gradients() -> None:
    def weight_only(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return functional.conv2d(x.detach(), weight)

    check(weight_only, data(2, 3, 8, 8), data(4, 3, 3, 3))


def test_conv_tbc() -> None:
    check(torch.conv_tbc, data(9, 2, 3), data(4, 3, 5), data(5), 1, backward=False)


UNFOLDS: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 8, 9), {"kernel_size": 3}),
    ((3, 8, 9), {"kernel_size": (2, 3), "stride": 2, "padding": 1}),
    (
        (2, 3, 10, 9),
        {"kernel_size": (3, 2), "dilation": (2, 3), "padding": (2, 0), "stride": (3, 1)},
    ),
    ((0, 3, 8, 9), {"kernel_size": 3}),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", UNFOLDS, ids=str)
def test_im2col_and_back(case: Any, dtype: torch.dtype) -> None:
    shape, options = case
    x = data(*shape, dtype=dtype)
    check(lambda x: functional.unfold(x, **options), x)
    columns = functional.unfold(x, **options).detach()
    check(lambda x: functional.fold(x, shape[-2:], **options), columns)


@pytest.mark.parametrize(
    ("shape", "dim", "size", "step"),
    [
        ((4, 9), 1, 3, 1),
        ((4, 9), 0, 2, 2),
        ((9, 2), 0, 2, 3),
        ((9,), 0, 4, 2),
        ((2, 9, 3), 1, 9, 1),
    ],
)
def test_unfold_backward(shape: tuple[int, ...], dim: int, size: int, step: int) -> None:
    check(lambda x: x.unfold(dim, size, step) * 1.0, data(*shape))
