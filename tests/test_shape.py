"""Joining, reordering and partly replacing tensors against the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from both_devices import check, data

pytestmark = pytest.mark.usefixtures("no_fallback")

DTYPES = [
    torch.float32,
    torch.bfloat16,
    torch.float64,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
    torch.complex64,
]

ops = torch.ops.aten

# (name, function of x [4, 5, 6])
CASES: dict[str, Callable[[torch.Tensor], Any]] = {
    "cat": lambda x: torch.cat([x, x[:2], x], 0),
    "cat last": lambda x: torch.cat([x, x[:, :, :3]], -1),
    "cat legacy empty": lambda x: torch.cat([x.new_empty(0), x, x.new_empty(0)], 1),
    "cat nothing": lambda x: torch.cat([x.new_empty(0), x.new_empty(0)]),
    "cat empty": lambda x: torch.cat([x, x[:, :0]], 1),
    "stack": lambda x: torch.stack([x, x], 1),
    "stack last": lambda x: torch.stack([x, x, x], -1),
    "block_diag": lambda x: torch.block_diag(x[0], x[0, 0], x[0, 0, 0]),
    "roll": lambda x: x.roll(1, 0),
    "roll two": lambda x: x.roll((-7, 2), (1, -1)),
    "roll flat": lambda x: x.roll(7),
    "flip": lambda x: x.flip(0, -1),
    "flip none": lambda x: x.flip(()),
    "rot90": lambda x: [x.rot90(k, (0, 2)) for k in range(-1, 4)],
    "rot90 other way": lambda x: x.rot90(1, (2, 1)),
    "tril": lambda x: [x.tril(k) for k in (0, 2, -2, 9, -9)],
    "triu": lambda x: [x.triu(k) for k in (0, 2, -2, 9, -9)],
    "repeat": lambda x: x.repeat(2, 1, 3),
    "repeat more": lambda x: x.repeat(2, 2, 1, 1),
    "repeat never": lambda x: x.repeat(1, 0, 1),
    "tile": lambda x: torch.tile(x, (2,)),
    "diag_embed": lambda x: torch.diag_embed(x, 1, 0, 2),
    "diag_embed below": lambda x: torch.diag_embed(x, -2),
    "diag_embed swapped": lambda x: torch.diag_embed(x, 1, -1, 1),
    "diagonal": lambda x: [x.diagonal(*d) for d in ((0,), (1, 0, 2), (-2, 2, 1))],
    "slice": lambda x: x[1:3, ::2, -2:],
    "select": lambda x: x.select(1, -2),
    "unfold": lambda x: x.unfold(1, 3, 2),
    "narrow": lambda x: x.narrow(2, 1, 3),
    "hstack": lambda x: torch.hstack([x, x]),
    "meshgrid": lambda x: torch.meshgrid(x[0, 0], x[0, :, 0], indexing="ij"),
    "movedim": lambda x: x.movedim(0, -1).contiguous(),
    "kron": lambda x: torch.kron(x[0], x[:2, 0]),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_cases(name: str, dtype: torch.dtype) -> None:
    backward = dtype in (torch.float32, torch.float64)
    check(CASES[name], data(4, 5, 6, dtype=dtype), backward=backward)


# (name, function of x [4, 5, 6] and a source, the source's shape)
UPDATES: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "slice_scatter": (lambda x, s: x.slice_scatter(s, 1, 1, 3), (4, 2, 6)),
    "slice_scatter step": (lambda x, s: x.slice_scatter(s, 2, -6, None, 2), (4, 5, 3)),
    "slice_scatter last step": (lambda x, s: x.slice_scatter(s, 2, 1, 6, 3), (4, 5, 2)),
    "slice_scatter all": (lambda x, s: x.slice_scatter(s, 0), (4, 5, 6)),
    "slice_scatter none": (lambda x, s: x.slice_scatter(s, 0, 2, 2), (0, 5, 6)),
    "select_scatter": (lambda x, s: x.select_scatter(s, 1, -2), (4, 6)),
    "diagonal_scatter": (lambda x, s: x.diagonal_scatter(s, 1, 0, 2), (5, 4)),
    "diagonal_scatter below": (lambda x, s: x.diagonal_scatter(s, -2, 2, 1), (4, 4)),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", UPDATES)
def test_updates(name: str, dtype: torch.dtype) -> None:
    function, shape = UPDATES[name]
    backward = dtype in (torch.float32, torch.float64)
    check(function, data(4, 5, 6, dtype=dtype), data(*shape, dtype=dtype), backward=backward)


# Copies of views, as functional graphs have them.
COPIES: dict[str, Callable[[torch.Tensor], Any]] = {
    "view": lambda x: ops.view_copy(x, [20, -1]),
    "expand": lambda x: ops.expand_copy(x[:, :1], [3, -1, 5, 6]),
    "permute": lambda x: ops.permute_copy(x, [2, 0, -2]),
    "transpose": lambda x: ops.transpose_copy(x, 0, -1),
    "t": lambda x: ops.t_copy(x[0]),
    "squeeze": lambda x: ops.squeeze_copy(x[:, :1]),
    "squeeze dim": lambda x: ops.squeeze_copy(x[:, :1], 1),
    "squeeze dims": lambda x: ops.squeeze_copy(x[:1, :1], [0, 1, 2]),
    "unsqueeze": lambda x: ops.unsqueeze_copy(x, -1),
    "select": lambda x: ops.select_copy(x, 1, -2),
    "slice": lambda x: ops.slice_copy(x, 1, 1, -1, 2),
    "narrow": lambda x: ops.narrow_copy(x, 2, 1, 3),
    "split_with_sizes": lambda x: ops.split_with_sizes_copy(x, [1, 4], 1),
    "split": lambda x: ops.split_copy(x, 4, 2),
    "unbind": lambda x: ops.unbind_copy(x, 0),
    "unfold": lambda x: ops.unfold_copy(x, 1, 3, 2),
    "diagonal": lambda x: [
        ops.diagonal_copy(x, *d) for d in ((0, 0, 1), (1, 0, 2), (-2, 2, 1), (-4, 0, 1))
    ],
    "alias": lambda x: ops.alias_copy(x),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
@pytest.mark.parametrize("name", COPIES)
def test_copies_of_views(name: str, dtype: torch.dtype) -> None:
    check(COPIES[name], data(4, 5, 6, dtype=dtype), backward=False)


def test_complex_copies() -> None:
    check(lambda x: ops.view_as_real_copy(x), data(3, 2, dtype=torch.complex64), backward=False)
    check(lambda x: ops.view_as_complex_copy(x), data(3, 2), backward=False)


def test_backward_operators() -> None:
    sizes = [4, 5, 6]
    check(lambda g: ops.slice_backward(g, sizes, 1, 1, 4, 2), data(4, 2, 6), backward=False)
    check(lambda g: ops.slice_backward(g, sizes, 1, 3, 3, 1), data(4, 0, 6), backward=False)
    check(lambda g: ops.select_backward(g, sizes, 1, -1), data(4, 6), backward=False)
    check(lambda g: ops.diagonal_backward(g, sizes, 1, 0, 2), data(5, 4), backward=False)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (torch.float32, torch.int64),
        (torch.int32, torch.uint8),
        (torch.bool, torch.int64),
        (torch.bfloat16, torch.float16),
        (torch.float64, torch.float32),
        (torch.complex64, torch.float64),
    ],
)
def test_cat_promotes(first: torch.dtype, second: torch.dtype) -> None:
    check(
        lambda x, y: (torch.cat([x, y]), torch.cat([y, x])),
        data(3, dtype=first),
        data(2, dtype=second),
        backward=False,
    )


def test_small_tensors() -> None:
    scalar = torch.tensor(2.0)
    check(lambda x: torch.stack([x, x]), scalar)
    check(lambda x: x.repeat(3), scalar)
    check(lambda x: x.flip(()), scalar)
    check(lambda x: x.roll(3), torch.empty(0, 3))
    check(lambda x: (x.tril(), x.triu(1), x.flip(0), x.repeat(2, 2)), torch.empty(0, 3))
    check(lambda x: torch.diag_embed(x, -1), torch.empty(2, 0))


def test_out_and_inplace() -> None:
    def run(x: torch.Tensor) -> Any:
        out = torch.empty(0, device=x.device)
        torch.cat([x, x], out=out)
        y = x.clone()
        y.tril_()
        y[:2].triu_(1)
        return out, y

    check(run, data(4, 5), backward=False)
