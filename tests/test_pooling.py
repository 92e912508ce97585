"""Pooling and its gradients against the CPU's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from both_devices import check, data
from torch.nn import functional

pytestmark = pytest.mark.usefixtures("no_fallback")

FLOATS = [torch.float32, torch.bfloat16, torch.float64]

# (function, shape, options)
POOLS: list[tuple[str, tuple[int, ...], dict[str, Any]]] = [
    ("max_pool1d", (2, 3, 10), {"kernel_size": 3}),
    ("max_pool2d", (2, 3, 8, 9), {"kernel_size": 2}),
    ("max_pool2d", (3, 8, 9), {"kernel_size": (2, 3), "stride": (1, 2)}),
    ("max_pool2d", (2, 3, 8, 9), {"kernel_size": 3, "stride": 2, "padding": 1}),
    ("max_pool2d", (2, 3, 9, 9), {"kernel_size": 3, "stride": 2, "ceil_mode": True}),
    ("max_pool2d", (2, 3, 9, 9), {"kernel_size": 2, "stride": 3, "dilation": 2, "padding": 1}),
    ("max_pool2d", (0, 3, 9, 9), {"kernel_size": 2}),
    ("max_pool2d", (1, 2, 12, 12), {"kernel_size": 10, "stride": 1}),
    ("max_pool3d", (2, 3, 5, 6, 7), {"kernel_size": 2}),
    ("max_pool3d", (3, 5, 6, 7), {"kernel_size": (3, 2, 3), "stride": 2, "padding": 1}),
    ("avg_pool1d", (2, 3, 10), {"kernel_size": 3, "stride": 2, "padding": 1}),
    ("avg_pool2d", (2, 3, 8, 9), {"kernel_size": 2}),
    ("avg_pool2d", (2, 3, 8, 10), {"kernel_size": 2}),
    ("avg_pool2d", (3, 8, 9), {"kernel_size": (2, 3), "stride": (1, 2)}),
    ("avg_pool2d", (2, 3, 8, 9), {"kernel_size": 3, "stride": 2, "padding": 1}),
    (
        "avg_pool2d",
        (2, 3, 8, 9),
        {"kernel_size": 3, "stride": 2, "padding": 1, "count_include_pad": False},
    ),
    (
        "avg_pool2d",
        (2, 3, 8, 9),
        {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True},
    ),
    ("avg_pool2d", (2, 3, 8, 9), {"kernel_size": 3, "divisor_override": 4}),
    ("avg_pool3d", (2, 3, 5, 6, 7), {"kernel_size": 2}),
    ("avg_pool3d", (3, 5, 6, 7), {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True}),
    ("adaptive_avg_pool1d", (2, 3, 10), {"output_size": 4}),
    ("adaptive_avg_pool2d", (2, 3, 8, 9), {"output_size": 1}),
    ("adaptive_avg_pool2d", (2, 3, 8, 9), {"output_size": (4, 3)}),
    ("adaptive_avg_pool2d", (3, 7, 10), {"output_size": (3, 4)}),
    ("adaptive_avg_pool2d", (2, 3, 4, 5), {"output_size": 7}),
    ("adaptive_avg_pool3d", (2, 3, 5, 6, 7), {"output_size": (2, 3, 3)}),
    ("adaptive_max_pool1d", (2, 3, 10), {"output_size": 4}),
    ("adaptive_max_pool2d", (2, 3, 8, 9), {"output_size": (4, 3)}),
    ("adaptive_max_pool2d", (3, 7, 10), {"output_size": (3, 4)}),
    ("adaptive_max_pool3d", (2, 3, 5, 6, 7), {"output_size": (2, 4, 3)}),
    ("lp_pool2d", (2, 3, 8, 9), {"norm_type": 2.0, "kernel_size": 3}),
]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("case", POOLS, ids=str)
def test_pools(case: Any, dtype: torch.dtype) -> None:
    name, shape, options = case
    if name == "avg_pool3d" and dtype is torch.bfloat16:
        pytest.skip("the CPU has no such kernel")
    if "max" in name:
        options = {**options, "return_indices": True}
    check(lambda x: getattr(functional, name)(x, **options), data(*shape, dtype=dtype))


def long_case(kernel: int) -> dict[str, Any]:
    return {"kernel_size": (1, kernel), "stride": (1, 3), "padding": (0, 20)}


def test_long_windows() -> None:
    x = data(2, 2, 300)
    options = long_case(90)
    check(lambda x: functional.max_pool2d(x, **options, return_indices=True), x)
    check(lambda x: functional.avg_pool2d(x, **options), x)
    check(lambda x: functional.max_pool1d(x, 150, return_indices=True), x)


@pytest.mark.parametrize("kernel", [2, 90])
def test_ties_infinities_and_nan(kernel: int) -> None:
    x = torch.randint(-1, 2, (3, 1, 200)).float()
    x[0, 0, 5:20] = -torch.inf
    x[1, 0, 50:52] = torch.nan
    x[2] = -torch.inf
    check(
        lambda x: functional.max_pool2d(x, (1, kernel), stride=(1, 2), return_indices=True),
        x,
        backward=False,
    )
    check(
        lambda x: functional.adaptive_max_pool2d(x, (1, 9), return_indices=True), x, backward=False
    )


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8], ids=str)
def test_integer_max_pool(dtype: torch.dtype) -> None:
    x = data(2, 3, 8, 9, dtype=dtype)
    check(lambda x: functional.max_pool2d(x, 3, stride=2, padding=1, return_indices=True), x)


def test_integer_avg_pool() -> None:
    check(
        lambda x: functional.avg_pool2d(x, 3, stride=2, padding=1),
        data(2, 3, 8, 9, dtype=torch.int64),
    )


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_max_unpool(dtype: torch.dtype) -> None:
    for dimensions, shape in ((1, (2, 3, 8)), (2, (2, 3, 8, 10)), (3, (2, 3, 4, 6, 8))):
        pool = getattr(functional, f"max_pool{dimensions}d")
        unpool = getattr(functional, f"max_unpool{dimensions}d")
        pooled, indices = pool(data(*shape, dtype=dtype), 2, return_indices=True)
        check(lambda x, i, unpool=unpool: unpool(x, i, 2), pooled, indices)
