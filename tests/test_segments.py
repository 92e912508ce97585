"""Reductions of segments, and checksums of tensors, against the CPU."""

from __future__ import annotations

import math

import compare
import pytest
import torch
from both_devices import check, data

pytestmark = pytest.mark.usefixtures("no_fallback")

LENGTHS = torch.tensor([2, 0, 3, 1])


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min", "prod"])
@pytest.mark.parametrize("initial", [None, 2.0])
def test_segment_reduce(reduce: str, initial: float | None) -> None:
    def run(x: torch.Tensor, lengths: torch.Tensor) -> list[torch.Tensor]:
        offsets = torch.tensor([0, 2, 2, 5, 6], device=x.device)
        return [
            torch.segment_reduce(x, reduce, lengths=lengths, initial=initial, unsafe=True),
            torch.segment_reduce(x, reduce, offsets=offsets, initial=initial),
        ]

    x = data(6, 3)
    if reduce == "prod":
        x[0, 0] = x[2, 1] = x[3, 1] = x[5, 2] = 0.0
    check(run, x, LENGTHS)


@pytest.mark.parametrize("reduce", ["max", "min"])
@pytest.mark.parametrize("seed", [1.0, -1.0])
def test_equal_extremes_share_a_gradient(reduce: str, seed: float) -> None:
    """PyTorch's CPU kernel divides only positive gradients."""
    x = torch.tensor([1.0, 1.0, 2.0, 2.0], device=compare.DEVICE, requires_grad=True)
    lengths = torch.tensor([2, 2], device=compare.DEVICE)
    torch.segment_reduce(x, reduce, lengths=lengths, unsafe=True).sum().mul(seed).backward()
    assert x.grad is not None
    assert x.grad.tolist() == [seed / 2] * 4


def test_segments_of_an_inner_dimension() -> None:
    lengths = torch.tensor([[1, 2], [3, 0]])
    check(
        lambda x, n: torch.segment_reduce(x, "sum", lengths=n, axis=1, unsafe=True),
        data(2, 3, 2),
        lengths,
    )


def test_segments_with_what_is_no_number() -> None:
    x = torch.tensor([1.0, math.nan, 3.0, math.inf, -math.inf, 0.0])
    for reduce in ("sum", "max", "min"):
        check(
            lambda x, n, how: torch.segment_reduce(x, how, lengths=n, unsafe=True),
            x,
            LENGTHS,
            reduce,
            backward=False,
        )


@pytest.mark.parametrize(
    "x",
    [
        torch.tensor([0.0, -0.0, 1.5, -2.25, 1e-40, -3e-45, math.inf, -math.inf, math.nan, 3e38]),
        torch.tensor([1e-310, 2.0, -math.inf], dtype=torch.float64),
        torch.tensor([6e-8, -1.0, 65504.0, math.inf], dtype=torch.float16),
        torch.tensor([1e-39, -1.0, 3e38], dtype=torch.bfloat16),
        torch.tensor([-1, 5, 1 << 40]),
        torch.tensor([-1, 5, -128], dtype=torch.int8),
        torch.tensor([200, 3], dtype=torch.uint8),
        torch.tensor([True, False, True, True]),
    ],
)
def test_hash(x: torch.Tensor) -> None:
    def run(x: torch.Tensor) -> list[torch.Tensor]:
        # One at a time, so that a wrong bit shows.
        parts = [torch.hash_tensor(part) for part in x.unbind()]
        return [torch.hash_tensor(x), torch.hash_tensor(x.reshape(1, -1), 1, keepdim=True), *parts]

    check(run, x, backward=False)
