"""Resizing, padding modes and grid sampling against the CPU's."""

from __future__ import annotations

from typing import Any

import compare
import pytest
import torch
from both_devices import check, data
from torch.nn import functional

pytestmark = pytest.mark.usefixtures("no_fallback")

SIZES: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 5), {"size": 10}),
    ((2, 3, 5), {"size": 7}),
    ((2, 3, 6, 5), {"scale_factor": 2}),
    ((2, 3, 6, 5), {"size": (4, 9)}),
    ((2, 3, 6, 5), {"scale_factor": 1.7}),
    ((2, 3, 6, 5), {"scale_factor": (0.6, 2.5), "recompute_scale_factor": True}),
    ((2, 3, 6, 5), {"size": (6, 5)}),
    ((2, 3, 40, 50), {"size": (70, 81)}),
    ((0, 3, 6, 5), {"scale_factor": 2}),
    ((2, 3, 3, 4, 5), {"scale_factor": 2}),
    ((2, 3, 3, 4, 5), {"size": (4, 3, 8)}),
]
LINEAR = {3: "linear", 4: "bilinear", 5: "trilinear"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
@pytest.mark.parametrize("case", SIZES, ids=str)
def test_nearest(case: Any, mode: str, dtype: torch.dtype) -> None:
    shape, options = case
    check(lambda x: functional.interpolate(x, mode=mode, **options), data(*shape, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("case", SIZES, ids=str)
def test_linear(case: Any, align_corners: bool, dtype: torch.dtype) -> None:
    shape, options = case
    options = {**options, "mode": LINEAR[len(shape)], "align_corners": align_corners}
    check(lambda x: functional.interpolate(x, **options), data(*shape, dtype=dtype))


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("mode", ["bicubic", "bilinear", "bicubic antialiased"])
@pytest.mark.parametrize("case", [c for c in SIZES if len(c[0]) == 4], ids=str)
def test_smooth(case: Any, mode: str, align_corners: bool) -> None:
    shape, options = case
    mode, _, antialias = mode.partition(" ")
    options = {**options, "mode": mode, "align_corners": align_corners}
    check(
        lambda x: functional.interpolate(
            x, antialias=bool(antialias) or mode == "bilinear", **options
        ),
        data(*shape),
    )
    check(lambda x: functional.interpolate(x, **options), data(*shape))


def test_nearest_of_integers() -> None:
    check(lambda x: functional.interpolate(x, scale_factor=2), data(2, 3, 4, 4, dtype=torch.uint8))


@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_bytes_in_fixed_point(mode: str, antialias: bool) -> None:
    """Every byte is the CPU's: weights have 16 bits, and each axis is rounded."""
    corners = torch.where(torch.rand(2, 3, 9, 13) < 0.5, 0, 255).to(torch.uint8)
    for size in ((4, 6), (20, 31), (9, 20), (1, 7), (5, 40)):
        for align_corners in (False, True):
            options: dict[str, Any] = {"size": size, "mode": mode, "align_corners": align_corners}
            for x in (data(2, 5, 9, 13, dtype=torch.uint8), corners):
                expected = functional.interpolate(x, antialias=antialias, **options)
                actual = functional.interpolate(
                    x.to(compare.DEVICE), antialias=antialias, **options
                )
                assert torch.equal(actual.cpu(), expected)


def test_bytes_of_an_axis_that_keeps_its_size() -> None:
    x = torch.randint(0, 256, (1, 3, 11, 14), dtype=torch.uint8)
    scales: dict[str, Any] = {"scale_factor": (1.01, 1.7), "mode": "bicubic", "antialias": True}
    expected = functional.interpolate(x, **scales)
    assert torch.equal(functional.interpolate(x.to(compare.DEVICE), **scales).cpu(), expected)


PADS: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((2, 3, 6), (2, 3)),
    ((3, 6), (0, 5)),
    ((2, 3, 6, 7), (2, 3, 1, 0)),
    ((3, 6, 7), (2, 0, 0, 4)),
    ((0, 3, 6, 7), (2, 3, 1, 0)),
    ((2, 3, 4, 5, 6), (2, 3, 1, 0, 2, 1)),
    ((3, 4, 5, 6), (1, 1, 1, 1, 1, 1)),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
@pytest.mark.parametrize("case", PADS, ids=str)
def test_padding_modes(case: Any, mode: str, dtype: torch.dtype) -> None:
    shape, padding = case
    check(lambda x: functional.pad(x, padding, mode=mode), data(*shape, dtype=dtype))


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64], ids=str
)
@pytest.mark.parametrize(
    "padding", [(1, 2), (0, 3, 2, 0), (-1, 2, 1, -2), (0, 0), (1, 1, 2, 2, 3, 3)]
)
def test_constant_padding(padding: tuple[int, ...], dtype: torch.dtype) -> None:
    x = data(2, 4, 5, dtype=dtype)
    check(lambda x: functional.pad(x, padding), x)
    check(lambda x: functional.pad(x, padding, value=1), x)


def test_constant_padding_refuses_negative_sizes() -> None:
    x = data(2, 3).to(compare.DEVICE)
    with pytest.raises(RuntimeError, match="negative"):
        functional.pad(x, (-2, -2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_shuffles(dtype: torch.dtype) -> None:
    check(lambda x: functional.pixel_shuffle(x, 2), data(2, 8, 3, 4, dtype=dtype))
    check(lambda x: functional.pixel_shuffle(x, 2), data(8, 3, 4, dtype=dtype))
    check(lambda x: functional.pixel_unshuffle(x, 2), data(2, 3, 4, 6, dtype=dtype))
    check(lambda x: torch.channel_shuffle(x, 3), data(2, 6, 3, 4, dtype=dtype), backward=False)


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_grid_sample(mode: str, padding: str, align_corners: bool) -> None:
    def sample(x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        return functional.grid_sample(x, grid, mode, padding, align_corners)

    check(sample, data(2, 3, 5, 6), data(2, 4, 7, 2) * 0.9)
    if mode != "bicubic":
        check(sample, data(2, 3, 4, 5, 6), data(2, 3, 4, 2, 3) * 0.9)


def test_grid_sample_narrow() -> None:
    def sample(x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        return functional.grid_sample(x, grid, align_corners=False)

    check(sample, data(2, 3, 5, 6, dtype=torch.float64), data(2, 4, 7, 2, dtype=torch.float64))
    check(sample, data(1, 3, 1, 1), data(1, 4, 7, 2))


def test_affine_grid() -> None:
    check(
        lambda theta, x: functional.grid_sample(
            x, functional.affine_grid(theta, [2, 3, 5, 6], align_corners=False), align_corners=False
        ),
        data(2, 2, 3),
        data(2, 3, 5, 6),
        tolerance=1e-4,
    )
