"""Sorting, selecting and searching against the CPU."""

from __future__ import annotations

import math

import compare
import pytest
import torch
from both_devices import check, data
from dtypes import REAL

pytestmark = pytest.mark.usefixtures("no_fallback")

DTYPES = REAL


def with_ties(dtype: torch.dtype) -> torch.Tensor:
    """Numbers with repetitions and, if there is such a thing, infinities and NaN."""
    x = torch.randint(0, 8, (4, 5, 6)).to(dtype)
    if dtype.is_floating_point:
        x[0, 0, 1] = x[1, 2, 3] = x[1, 2, 5] = math.nan
        x[2, 0, 0] = x[2, 0, 4] = math.inf
        x[3, 1, 0] = -math.inf
        x[3, 2] = math.nan
    return x


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bool])
@pytest.mark.parametrize("descending", [False, True])
def test_sort(dtype: torch.dtype, descending: bool) -> None:
    x = with_ties(dtype)
    check(
        lambda x: [
            tuple(torch.sort(x, dim=d, descending=descending, stable=True)) for d in (0, 1, -1)
        ],
        x,
        backward=False,
    )


def test_sort_gradient() -> None:
    check(lambda x: [x.sort(0).values, x.sort(descending=True).values, x.msort()], data(4, 5))


def test_argsort() -> None:
    check(lambda x: [x.argsort(), x.argsort(0, descending=True)], data(5, 6), backward=False)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (0, 3), (1,)])
def test_sort_nothing_to_do(shape: tuple[int, ...]) -> None:
    check(lambda x: tuple(x.sort(-1)), data(*shape), backward=False)


def test_sort_into_given_tensors() -> None:
    def run(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        out = (torch.empty(0, device=x.device), torch.empty(0, device=x.device, dtype=torch.int64))
        torch.sort(x, out=out)
        return out

    check(run, data(4, 5), backward=False)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("largest", [True, False])
def test_topk(dtype: torch.dtype, largest: bool) -> None:
    """Values are the CPU's; of equal ones, any may be chosen."""
    x = with_ties(dtype)
    for k, dim in ((0, -1), (1, -1), (3, -1), (6, 2), (3, 1), (4, 0)):
        expected = x.topk(k, dim, largest)
        actual = x.to(compare.DEVICE).topk(k, dim, largest)
        compare.assert_same(actual.values, expected.values, what=f"top {k} of dimension {dim}")
        chosen = x.gather(dim, actual.indices.cpu())
        torch.testing.assert_close(chosen, expected.values, equal_nan=True, rtol=0, atol=0)


def test_topk_gradient_and_scalar() -> None:
    check(lambda x: [tuple(x.topk(3)), tuple(x.topk(2, 0, False))], data(5, 7))
    check(lambda x: tuple(x.topk(1)), torch.tensor(3.0), backward=False)


@pytest.mark.parametrize("dtype", DTYPES)
def test_order_statistics(dtype: torch.dtype) -> None:
    x = with_ties(dtype)
    check(
        lambda x: [
            x.median(),
            x.median(1).values,
            x.nanmedian(),
            x.nanmedian(-1, keepdim=True).values,
            x.kthvalue(2, 0).values,
        ],
        x,
        backward=False,
    )
    # The CPU's mode of NaNs depends on how its sort happens to compare them.
    check(lambda x: [x.mode(-1).values, x.mode(0).values], x.nan_to_num(), backward=False)


def test_order_statistics_indices() -> None:
    """Without ties the indices are determined too."""
    x = torch.randperm(60).reshape(5, 12).float()
    check(
        lambda x: [
            *(tuple(x.median(d, keepdim=True)) for d in (0, 1)),
            *(tuple(x.kthvalue(k)) for k in (1, 5)),
            tuple(x.mode(0)),
            tuple(x[0, 0].median(0)),
        ],
        x,
    )


def test_quantile() -> None:
    x = data(4, 9)
    check(lambda x: [x.quantile(0.3), x.quantile(0.5, 1), x.nanquantile(0.9, 0)], x)


@pytest.mark.parametrize("length", [0, 1, 7, 900])
@pytest.mark.parametrize("right", [False, True])
def test_search(length: int, right: bool) -> None:
    boundaries = torch.sort(torch.randint(0, 50, (4, length)).float()).values
    values = torch.randint(-2, 52, (4, 6)).float()
    values[0, 0] = math.nan
    check(
        lambda b, v: [
            torch.searchsorted(b, v, right=right),
            torch.searchsorted(b[0], v, side="right" if right else "left"),
            torch.searchsorted(b[1], 7.0, right=right),
            torch.bucketize(v, b[2], right=right, out_int32=True),
        ],
        boundaries,
        values,
        backward=False,
    )


def test_search_with_sorter_and_other_types() -> None:
    sequence = torch.randint(0, 99, (3, 20))
    check(
        lambda s, v: torch.searchsorted(s, v, sorter=s.argsort(-1)), sequence, sequence[:, :5] + 1
    )
    check(lambda s: torch.searchsorted(s, s, sorter=s.argsort()), data(0), backward=False)
    check(lambda v, b: torch.bucketize(v, b), data(3, 4), torch.arange(-2, 3), backward=False)


@pytest.mark.parametrize("count", [0, 5, 1500])
@pytest.mark.parametrize("invert", [False, True])
def test_isin(count: int, invert: bool) -> None:
    elements, others = torch.randint(0, 3000, (6, 7)), torch.randint(0, 3000, (count,))
    check(
        lambda x, y: [
            torch.isin(x, y, invert=invert),
            torch.isin(x.float(), y.float(), invert=invert),
            torch.isin(x, 7, invert=invert),
            torch.isin(7, y, invert=invert),
        ],
        elements,
        others,
        backward=False,
    )
