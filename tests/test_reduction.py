"""Sums, extremes, norms, statistics, running totals and distances against the CPU."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from both_devices import check, data

pytestmark = pytest.mark.usefixtures("no_fallback")

FLOATS = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
INTEGERS = [torch.int64, torch.int32, torch.uint8]
DIFFERENTIABLE = (torch.float32, torch.float64)
INF = math.inf

Case = Callable[[torch.Tensor], Any]

# Functions of x [3, 4, 5], for every dtype.
ANY_DTYPE: dict[str, Case] = {
    "sum": lambda x: x.sum(),
    "sum dims": lambda x: [x.sum(0), x.sum((0, -1), keepdim=True), x.sum(())],
    "sum dtype": lambda x: x.sum(1, dtype=torch.promote_types(x.dtype, torch.float64)),
    "prod": lambda x: [x.prod(), x.prod(-1), x.prod(0, keepdim=True)],
    "any": lambda x: [x.any(), x.any(0), x.any(-1, keepdim=True), x.any((0, 1))],
    "all": lambda x: [x.all(), x.all(0), x.all(-1, keepdim=True), x.all((0, 1))],
    "count_nonzero": lambda x: [x.count_nonzero(), x.count_nonzero(0), x.count_nonzero((0, 1))],
    "cumsum": lambda x: [x.cumsum(0), x.cumsum(-1), x[0, 0, 0].cumsum(0)],
    "cumprod": lambda x: [x.cumprod(0), x.cumprod(-1)],
}

# Those that need an order.
ORDERED: dict[str, Case] = {
    "max": lambda x: [x.max(), x.max(-1).values, x.max(0, keepdim=True).indices],
    "min": lambda x: [x.min(), x.min(-1).values, x.min(0, keepdim=True).indices],
    "amax": lambda x: [x.amax(), x.amax(0), x.amax((0, 2), keepdim=True)],
    "amin": lambda x: [x.amin(), x.amin(0), x.amin((0, 2), keepdim=True)],
    "aminmax": lambda x: [tuple(x.aminmax()), tuple(x.aminmax(dim=1, keepdim=True))],
    "cummax": lambda x: [tuple(x.cummax(0)), tuple(x.cummax(-1))],
    "cummin": lambda x: [tuple(x.cummin(0)), tuple(x.cummin(-1))],
}

# Not for bool.
NUMBERS: dict[str, Case] = {
    "argmax": lambda x: [x.argmax(), x.argmax(0), x.argmax(-1, keepdim=True)],
    "argmin": lambda x: [x.argmin(), x.argmin(0), x.argmin(-1, keepdim=True)],
    "trace": lambda x: x[0].trace(),
    "logsumexp": lambda x: [x.logsumexp(0), x.logsumexp((0, 1), keepdim=True)],
}

FLOATING: dict[str, Case] = {
    "mean": lambda x: [x.mean(), x.mean(0), x.mean((0, -1), keepdim=True)],
    "nansum": lambda x: [x.nansum(), x.nansum(0)],
    "nanmean": lambda x: x.nanmean(1),
    "var": lambda x: [x.var(), x.var(0), x.var((0, 2), correction=0, keepdim=True)],
    "std": lambda x: [x.std(), x.std(-1, unbiased=False)],
    "var_mean": lambda x: torch.var_mean(x, 1),
    "std_mean": lambda x: torch.std_mean(x, (0, 1), keepdim=True),
    "norm": lambda x: [x.norm(), x.norm(1, 0), x.norm(3, (0, 1), keepdim=True)],
    "norm dtype": lambda x: torch.norm(x, 2, 0, dtype=torch.float64),
    "logcumsumexp": lambda x: x.logcumsumexp(1),
    "renorm": lambda x: x.renorm(2, 1, 1.0),
    "dist": lambda x: [torch.dist(x, x[0], p) for p in (1.0, 2.0, INF)],
    "count zero": lambda x: torch.linalg.vector_norm(x, 0, 1),
}

COMPLEX: dict[str, Case] = {
    "mean": lambda x: [x.mean(), x.mean(0)],
    "var": lambda x: [x.var(), x.var(0)],
    "norm": lambda x: [torch.linalg.vector_norm(x, p, (0, 1)) for p in (1, 2, 3)],
}


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.bool, torch.complex64])
@pytest.mark.parametrize("name", ANY_DTYPE)
def test_any_dtype(name: str, dtype: torch.dtype) -> None:
    check(ANY_DTYPE[name], data(3, 4, 5, dtype=dtype), backward=dtype in DIFFERENTIABLE)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.bool])
@pytest.mark.parametrize("name", ORDERED)
def test_ordered(name: str, dtype: torch.dtype) -> None:
    check(ORDERED[name], data(3, 4, 5, dtype=dtype), backward=dtype in DIFFERENTIABLE)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers(name: str, dtype: torch.dtype) -> None:
    check(NUMBERS[name], data(3, 4, 5, dtype=dtype), backward=dtype in DIFFERENTIABLE)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", FLOATING)
def test_floating(name: str, dtype: torch.dtype) -> None:
    check(FLOATING[name], data(3, 4, 5, dtype=dtype), backward=dtype in DIFFERENTIABLE)


@pytest.mark.parametrize("name", COMPLEX)
def test_complex(name: str) -> None:
    check(COMPLEX[name], data(3, 4, 5, dtype=torch.complex64), backward=False)


@pytest.mark.parametrize("p", [0, 0.5, 1, 2, 2.5, 3, INF, -INF, -1])
def test_vector_norm(p: float) -> None:
    def norms(x: torch.Tensor) -> list[torch.Tensor]:
        norm = torch.linalg.vector_norm
        return [norm(x, p), norm(x, p, 1), norm(x, p, (0, 2), keepdim=True)]

    check(norms, data(3, 4, 5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_not_numbers(dtype: torch.dtype) -> None:
    """NaN wins extremes, and the first of several is where they were found."""
    x = data(4, 6, dtype=dtype)
    x[0, 2] = x[0, 4] = x[3, 0] = INF
    x[1, 1] = x[1, 3] = math.nan
    x[2] = -INF
    check(
        lambda x: [
            *(tuple(x.max(d)) + tuple(x.min(d)) for d in (0, 1)),
            *(tuple(x.cummax(d)) + tuple(x.cummin(d)) for d in (0, 1)),
            *(x.argmax(d) for d in (None, 0, 1)),
            *(x.argmin(d) for d in (None, 0, 1)),
            *(f() for f in (x.max, x.min, x.amax, x.amin, x.nansum, x.any, x.all)),
            tuple(x.aminmax(dim=0)),
            x.logsumexp(1),
            x.cumsum(1),
            x.nansum(0),
        ],
        x,
        backward=False,
    )


def test_ties_give_the_first_index() -> None:
    x = torch.tensor([[1, 3, 3, 0], [0, 0, 0, 0]])
    check(lambda x: [x.argmax(1), x.max(1).indices, x.argmin(0), x.argmax()], x)


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (3, 0)])
def test_empty_and_scalar(shape: tuple[int, ...]) -> None:
    def reductions(x: torch.Tensor) -> list[torch.Tensor]:
        return [
            x.sum(),
            x.sum(-1),
            x.prod(),
            x.mean(),
            x.any(),
            x.all(),
            x.norm(),
            x.cumsum(0),
            x.logsumexp(0),
            x.count_nonzero(),
            x.nansum(0, keepdim=True),
        ]

    check(reductions, data(*shape))


def test_scalar_extremes() -> None:
    check(
        lambda x: [x.max(), tuple(x.max(0)), x.argmax(), x.argmin(0), x.amax(), tuple(x.cummin(0))],
        torch.tensor(2.5),
        backward=False,
    )


@pytest.mark.parametrize("length", [2, 31, 32, 33, 700])
def test_long_running_totals(length: int) -> None:
    """Runs over dimensions longer than one block of the scan."""
    x = data(3, length)
    check(lambda x: [x.cumsum(1), x.cumsum(0)], x)
    check(lambda x: [tuple(x.cummax(1)), tuple(x.cummin(1)), x.logcumsumexp(1)], x, backward=False)
    check(lambda x: x.cumsum(1), data(3, length, dtype=torch.int64))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_logcumsumexp(dtype: torch.dtype) -> None:
    """Angles add up, in the order of the elements, beyond one turn."""
    check(lambda x: [x.logcumsumexp(0), x.logcumsumexp(1)], 4 * data(3, 40, dtype=dtype))
    nan = math.nan
    special = (complex(INF, 1), complex(-INF, 2), 1 + 2j, complex(1, INF), complex(nan, 1), INF)
    rows = torch.tensor(list(itertools.permutations(special, 3)), dtype=dtype)
    check(lambda x: x.logcumsumexp(1), rows, backward=False)
    # The branch where real parts are equal.
    ties = torch.tensor([[0j, 4j, 1 + 5j], [4j, 0j, -3j], [1 - 4j, 1 + 4j, 1j]], dtype=dtype)
    check(lambda x: x.logcumsumexp(1), ties, backward=False)
    twice = torch.tensor([complex(INF, 1), complex(INF, 5)], dtype=dtype)
    check(lambda x: torch.view_as_real(x.logcumsumexp(0)), twice, backward=False)
    check(lambda x: x.logcumsumexp(0), torch.tensor(1 + 2j, dtype=dtype), backward=False)
    check(lambda x: x.logcumsumexp(0), torch.empty(0, 3, dtype=dtype), backward=False)


def test_out_and_in_place() -> None:
    def run(x: torch.Tensor) -> list[torch.Tensor]:
        total = torch.empty(0, device=x.device)
        torch.sum(x, 0, out=total)
        values, indices = torch.empty_like(x[0]), torch.empty_like(x[0], dtype=torch.int64)
        torch.max(x, 0, out=(values, indices))
        return [total, values, indices, x.clone().cumsum_(1)]

    check(run, data(4, 5), backward=False)


def test_a_large_sum_is_accurate() -> None:
    check(lambda x: [x.sum(), x.mean(), x.norm()], torch.rand(1_000_000), backward=False)


def test_half_sums_do_not_saturate() -> None:
    check(lambda x: [x.sum(), x.mean(0)], torch.ones(5000, 4, dtype=torch.bfloat16), backward=False)


@pytest.mark.parametrize("limits", [(0, 0), (-1, 1), (0.5, 3)])
def test_histc(limits: tuple[float, float]) -> None:
    check(lambda x: torch.histc(x, 10, *limits), data(200), backward=False)


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, INF])
def test_cdist(p: float) -> None:
    check(lambda a, b: torch.cdist(a, b, p), data(2, 5, 3), data(2, 4, 3), tolerance=1e-4)


def test_cdist_broadcasts() -> None:
    check(lambda a, b: torch.cdist(a, b), data(5, 3), data(2, 4, 3), tolerance=1e-4)
    check(lambda a, b: torch.cdist(a, b), data(5, 0), data(4, 0), backward=False)
