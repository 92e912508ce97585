"""Histograms, distances within a set, pooling at drawn places and the Airy function."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from both_devices import check, data

pytestmark = pytest.mark.usefixtures("no_fallback")

POINTS = torch.tensor([0.0, 0.5, 1.0, 1.0, 2.0, 3.0, 4.0, -1.0, 9.0])
WEIGHTS = torch.arange(9.0)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"range": (0.0, 4.0)},
        {"density": True},
        {"weight": WEIGHTS, "range": (-2.0, 2.5)},
        {"weight": WEIGHTS, "density": True},
    ],
)
def test_histogram(options: dict[str, Any]) -> None:
    check(lambda x, o: tuple(torch.histogram(x, 4, **o)), POINTS, options, backward=False)


def test_histogram_between_given_edges() -> None:
    edges = torch.tensor([-1.0, 0.0, 0.5, 3.0])
    check(
        lambda x, e: [tuple(torch.histogram(x, e)), tuple(torch.histogram(x, e, density=True))],
        POINTS.double(),
        edges.double(),
        backward=False,
    )


def test_histogram_of_odd_inputs() -> None:
    same, nothing = torch.full((3,), 2.0), torch.empty(0)
    check(lambda x: tuple(torch.histogram(x, 3)), same, backward=False)
    check(lambda x: tuple(torch.histogram(x, 3)), nothing, backward=False)
    check(lambda x: torch.histc(x, 3), nothing, backward=False)
    not_number = torch.tensor([1.0, math.nan, 2.0])
    check(lambda x: tuple(torch.histogram(x, 2, range=(0.0, 2.0))), not_number, backward=False)


@pytest.mark.parametrize("density", [False, True])
def test_histogram_of_points(density: bool) -> None:
    x = data(3, 7, 2)

    def run(x: torch.Tensor) -> list[Any]:
        counts = torch.histogramdd(x, [3, 4], density=density)
        edges = [torch.linspace(-1, 1, n, device=x.device) for n in (3, 5)]
        return [
            counts.hist,
            *counts.bin_edges,
            torch.histogramdd(x, edges, density=density).hist,
            torch.histogramdd(x, [2, 2], range=[-1.0, 1.0, -2.0, 0.5], density=density).hist,
        ]

    check(run, x, backward=False)


@pytest.mark.parametrize("p", [0.0, 1.0, 1.5, 2.0, 3.0, math.inf])
def test_distances_within_a_set(p: float) -> None:
    check(lambda x: torch.nn.functional.pdist(x, p), data(5, 3), tolerance=1e-4)


def test_distances_of_few() -> None:
    for shape in ((1, 3), (3, 0)):
        check(torch.nn.functional.pdist, data(*shape))
    # PyTorch's own backward crashes for no points.
    check(torch.nn.functional.pdist, data(0, 3), backward=False)
    check(torch.nn.functional.pdist, torch.ones(3, 2))  # all at the same place


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("shape", "kernel", "out"),
    [((2, 3, 9, 8), (2, 3), (4, 3)), ((3, 7, 7), (2, 2), (1, 5)), ((1, 2, 6, 9, 8), 2, (2, 4, 3))],
)
def test_fractional_pooling(
    shape: tuple[int, ...], kernel: Any, out: tuple[int, ...], dtype: torch.dtype
) -> None:
    count = len(out)
    batch = shape[0] if len(shape) == count + 2 else 1
    samples = torch.rand(batch, shape[-count - 1], count).to(dtype)
    pool = getattr(torch.nn.functional, f"fractional_max_pool{count}d")

    def run(x: torch.Tensor, samples: torch.Tensor) -> Any:
        return pool(
            x, kernel, output_size=out, return_indices=True, _random_samples=samples.detach()
        )

    check(run, data(*shape, dtype=dtype), samples)
    if count == 3:
        # An image alone takes the first of a batch's samples.
        check(run, data(*shape[1:], dtype=dtype), torch.cat([samples, samples / 2]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_airy(dtype: torch.dtype) -> None:
    # PyTorch's own is wrong in the sixth digit around -2.1.
    x = torch.cat([torch.linspace(-12, -2.5, 40), torch.linspace(-2, 110, 60)]).to(dtype)
    check(torch.special.airy_ai, x, backward=False, tolerance=1e-5)
    special = torch.tensor([math.inf, -math.inf, math.nan, 0.0, 1e5], dtype=dtype)
    check(torch.special.airy_ai, special, backward=False)
