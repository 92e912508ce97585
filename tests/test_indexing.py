"""Indexing by tensors against the CPU: gather, scatter, index, embedding and their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import compare
import pytest
import torch
from both_devices import check, data
from dtypes import COMMON
from torch.nn import functional

pytestmark = pytest.mark.usefixtures("no_fallback")

FLOATS = [torch.float32, torch.bfloat16, torch.float64]
DTYPES = COMMON
# Types in which sums do not depend on the order of the terms more than the tolerance allows.
EXACT = [torch.float32, torch.float64, torch.int64, torch.bool, torch.complex64]


# The tables below are made at import, before any test seeds.
GENERATOR = torch.Generator().manual_seed(0)


def at(*shape: int, below: int) -> torch.Tensor:
    """Random indices."""
    return torch.randint(below, shape, generator=GENERATOR)


def distinct(*shape: int, below: int) -> torch.Tensor:
    """Random indices that differ along the last dimension."""
    return (
        torch.rand(*shape[:-1], below, generator=GENERATOR)
        .argsort(-1)[..., : shape[-1]]
        .contiguous()
    )


# (name, function of x [4, 5, 6] and indices)
READS: list[tuple[str, Callable[..., Any], list[torch.Tensor]]] = [
    ("one", lambda x, i: x[i], [at(4, 3, below=4)]),
    ("int32", lambda x, i: x[i], [at(3, below=4).int()]),
    ("zero-dim", lambda x, i: x[i], [torch.tensor(2)]),
    ("negative", lambda x, i: x[i], [torch.tensor([-1, -4, 0])]),
    ("second", lambda x, i: x[:, i], [at(2, 3, below=5)]),
    ("apart", lambda x, i, j: x[i, :, j], [at(4, 2, below=4), at(2, below=6)]),
    ("adjacent", lambda x, i, j: x[:, i, j], [at(2, 1, below=5), at(3, below=6)]),
    ("all", lambda x, i, j, k: x[i, j, k], [at(2, below=4), at(2, below=5), at(2, below=6)]),
    ("mixed ranks", lambda x, i, j: x[i, j], [torch.tensor([[1]]), torch.tensor(2)]),
    ("with slice", lambda x, i: x[1:3, ::2, i], [at(7, below=6)]),
    ("none taken", lambda x, i: x[:, :, i], [torch.empty(0, dtype=torch.int64)]),
    ("index_select", lambda x, i: x.index_select(1, i), [torch.tensor([0, 4, 2])]),
    ("index_select none", lambda x, i: x.index_select(-1, i), [torch.empty(0, dtype=torch.int64)]),
    ("gather", lambda x, i: x.gather(1, i), [at(4, 2, 6, below=5)]),
    ("gather corner", lambda x, i: x.gather(0, i), [at(2, 3, 4, below=4)]),
    ("gather more", lambda x, i: x.gather(-1, i), [at(4, 5, 9, below=6)]),
    ("gather none", lambda x, i: x.gather(1, i), [torch.empty(0, 2, 6, dtype=torch.int64)]),
    ("take_along_dim", lambda x, i: x.take_along_dim(i, 1), [at(4, 1, 6, below=5)]),
    ("take", lambda x, i: x.take(i), [at(3, 4, below=120)]),
    ("take negative", lambda x, i: x.take(i), [torch.tensor([-1, 5, -120])]),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "read", "indices"), READS, ids=[r[0] for r in READS])
def test_reads(
    name: str, read: Callable[..., Any], indices: list[torch.Tensor], dtype: torch.dtype
) -> None:
    check(read, data(4, 5, 6, dtype=dtype), *indices, backward=dtype in EXACT)


def assign(x: torch.Tensor, where: Any, value: Any) -> torch.Tensor:
    """A copy of `x` after `x[where] = value`."""
    out = x.clone()
    out[where] = value
    return out


# (name, function of x [4, 5, 6], of a source, and of indices, the source's shape)
WRITES: list[tuple[str, Callable[..., Any], tuple[int, ...], list[torch.Tensor]]] = [
    ("rows", lambda x, s, i: assign(x, i, s), (2, 5, 6), [torch.tensor([1, 3])]),
    ("broadcast", lambda x, s, i: assign(x, i, s), (6,), [torch.tensor([1, 3])]),
    ("broadcast more", lambda x, s, i: assign(x, i, s), (1, 1, 5, 6), [torch.tensor([1, 3])]),
    (
        "columns",
        lambda x, s, i: assign(x, (slice(None), i), s),
        (4, 2, 6),
        [torch.tensor([0, -2])],
    ),
    (
        "apart",
        lambda x, s, i, j: assign(x, (i, slice(None), j), s),
        (2, 5),
        [torch.tensor([0, 1]), torch.tensor([2, -3])],
    ),
    (
        "slice and index",
        lambda x, s, i: assign(x, (slice(1, 3), i), s),
        (2, 2, 6),
        [torch.tensor([0, 3])],
    ),
    ("number", lambda x, s, i: assign(x, i, 1), (1,), [torch.tensor([1, 3])]),
    (
        "index_put",
        lambda x, s, i, j: x.index_put((i, j), s),
        (3, 6),
        [distinct(3, below=4), at(3, below=5)],
    ),
    ("scatter", lambda x, s, i: x.scatter(1, i, s), (4, 3, 2), [distinct(4, 2, 3, below=5).mT]),
    (
        "scatter corner",
        lambda x, s, i: x.scatter(1, i, s),
        (4, 5, 6),
        [distinct(3, 2, 3, below=5).mT],
    ),
    ("scatter value", lambda x, s, i: x.scatter(1, i, 1), (1,), [distinct(4, 2, 3, below=5).mT]),
    ("index_copy", lambda x, s, i: x.index_copy(1, i, s), (4, 2, 6), [torch.tensor([3, 0])]),
    ("index_fill", lambda x, s, i: x.index_fill(2, i, 1), (1,), [torch.tensor([3, 0])]),
    ("index_fill tensor", lambda x, s, i: x.index_fill(2, i, s), (), [torch.tensor([3, 0])]),
    ("put", lambda x, s, i: x.put(i, s), (3,), [torch.tensor([1, -2, 7])]),
    (
        "masked_scatter",
        lambda x, s, m: x.masked_scatter(m, s),
        (120,),
        [torch.rand(5, 6, generator=GENERATOR) < 0.5],
    ),
]


# PyTorch's own gradients ask for as many sources as indices, or for a shape that depends on data.
WITHOUT_GRADIENT = ["scatter corner", "scatter_add corner", "index_fill tensor", "masked_scatter"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "write", "shape", "indices"), WRITES, ids=[w[0] for w in WRITES])
def test_writes(
    name: str,
    write: Callable[..., Any],
    shape: tuple[int, ...],
    indices: list[torch.Tensor],
    dtype: torch.dtype,
) -> None:
    backward = dtype in EXACT and name not in WITHOUT_GRADIENT
    check(write, data(4, 5, 6, dtype=dtype), data(*shape, dtype=dtype), *indices, backward=backward)


ADDS: list[tuple[str, Callable[..., Any], tuple[int, ...], list[torch.Tensor]]] = [
    (
        "index_put",
        lambda x, s, i: x.index_put((i,), s, accumulate=True),
        (9, 5, 6),
        [at(9, below=4)],
    ),
    (
        "index_put two",
        lambda x, s, i, j: x.index_put((i, j), s, accumulate=True),
        (8, 6),
        [at(8, below=4), at(8, below=5)],
    ),
    ("put", lambda x, s, i: x.put(i, s, accumulate=True), (3,), [torch.tensor([1, 1, -7])]),
    ("index_add", lambda x, s, i: x.index_add(0, i, s), (7, 5, 6), [at(7, below=4)]),
    ("index_add last", lambda x, s, i: x.index_add(-1, i, s), (4, 5, 7), [at(7, below=6)]),
    ("scatter_add", lambda x, s, i: x.scatter_add(1, i, s), (4, 7, 6), [at(4, 7, 6, below=5)]),
    (
        "scatter_add corner",
        lambda x, s, i: x.scatter_add(0, i, s),
        (9, 5, 6),
        [at(9, 2, 3, below=4)],
    ),
]


@pytest.mark.parametrize("dtype", EXACT)
@pytest.mark.parametrize(("name", "add", "shape", "indices"), ADDS, ids=[a[0] for a in ADDS])
def test_adds(
    name: str,
    add: Callable[..., Any],
    shape: tuple[int, ...],
    indices: list[torch.Tensor],
    dtype: torch.dtype,
) -> None:
    backward = name not in WITHOUT_GRADIENT
    check(add, data(4, 5, 6, dtype=dtype), data(*shape, dtype=dtype), *indices, backward=backward)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_sums_are_formed_in_float32(dtype: torch.dtype, device: torch.device) -> None:
    """512 ones and a sixteenth: adding one by one in bfloat16 would stop at 256."""
    out = torch.zeros(1, dtype=dtype, device=device)
    ones = torch.ones(512, dtype=dtype, device=device)
    out.index_add_(0, torch.zeros(512, dtype=torch.int64, device=device), ones)
    assert out.item() == 512


def test_index_add_alpha() -> None:
    for dtype in (torch.float32, torch.int64):
        check(
            lambda x, s, i: x.index_add(1, i, s, alpha=3),
            data(4, 5, dtype=dtype),
            data(4, 7, dtype=dtype),
            at(7, below=5),
        )


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.int32])
def test_reductions(reduce: str, include_self: bool, dtype: torch.dtype) -> None:
    # Distinct values: where a maximum is tied, its gradient is shared.
    index = at(4, 3, 6, below=5)
    check(
        lambda x, s, i: x.scatter_reduce(1, i, s, reduce, include_self=include_self),
        data(4, 5, 6, dtype=dtype),
        data(4, 3, 6, dtype=dtype),
        index,
        backward=dtype.is_floating_point,
    )
    if reduce != "sum":
        check(
            lambda x, s, i: x.index_reduce(1, i, s, reduce, include_self=include_self),
            data(4, 5, 6, dtype=dtype),
            data(4, 3, 6, dtype=dtype),
            at(3, below=5),
            backward=False,
        )


@pytest.mark.parametrize("reduce", ["amax", "amin"])
def test_reductions_keep_nan(reduce: str) -> None:
    nan = float("nan")
    for source in ([1.0, nan, 2.0, 3.0], [nan, 1.0, 2.0, -3.0]):
        check(
            lambda x, s, i: x.scatter_reduce(0, i, s, reduce),
            torch.zeros(2),
            torch.tensor(source),
            torch.tensor([0, 0, 1, 1]),
            backward=False,
        )


@pytest.mark.parametrize("reduce", ["add", "multiply"])
def test_scatter_with_reduce(reduce: str) -> None:
    for dtype in (torch.float32, torch.int64):
        x, index = data(4, 5, dtype=dtype), at(4, 7, below=5)
        check(lambda x, i: x.scatter(1, i, 2, reduce=reduce), x, index, backward=False)
        source = data(4, 7, dtype=dtype)
        check(lambda x, i, s: x.scatter(1, i, s, reduce=reduce), x, index, source, backward=False)


def test_zero_dim_tensors() -> None:
    x, zero, source = torch.tensor(3.0), torch.tensor([0]), torch.tensor(2.0)
    check(lambda x, i: x.index_select(0, i), x, zero)
    check(lambda x, i: x.gather(0, i), x, torch.tensor(0))
    check(lambda x, i, s: x.index_add(0, i, s), x, zero, source, backward=False)
    check(lambda x, i, s: x.index_copy(0, i, s), x, zero, source, backward=False)
    check(lambda x, i: x.index_fill(0, i, 5.0), x, zero, backward=False)
    check(lambda x, i, s: x.scatter(0, i, s), x, torch.tensor(0), torch.tensor(2.0))
    check(lambda x, i: x.take(i), x, zero)


def test_empty_tensors() -> None:
    none = torch.empty(0, dtype=torch.int64)
    check(lambda x, i: x[i], torch.empty(0, 4), none)
    check(lambda x, i: x.index_add(0, i, x[:0]), data(3, 4), none)
    check(lambda x, i: x.scatter_add(0, i, x[:0]), data(3, 4), none.reshape(0, 4))
    check(lambda x, m: x.masked_scatter(m, x), torch.empty(0, 3), torch.empty(0, 3).bool())


def test_inplace_writes_reach_the_base() -> None:
    def write(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        x[1:3].index_fill_(1, i, -1.0)
        x.t().scatter_(0, i[None], 7.0)
        x[:, 2][i] = 4.0
        x.view(-1).put_(i, torch.tensor([8.0, 9.0], device=x.device))
        x.select(0, 3).masked_scatter_(x.select(0, 3) < 0, x.select(0, 2) * 2)
        return x

    check(write, data(4, 5), torch.tensor([3, 0]), backward=False)


def test_index_out_of_a_dimension_without_elements() -> None:
    with pytest.raises(IndexError):
        torch.empty(0, 3, device=compare.DEVICE)[torch.tensor([0], device=compare.DEVICE)]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("padding", [None, 2])
def test_embedding(padding: int | None, scale: bool, dtype: torch.dtype) -> None:
    check(
        lambda w, i: functional.embedding(i, w, padding_idx=padding, scale_grad_by_freq=scale),
        data(10, 6, dtype=dtype),
        at(4, 3, below=10),
    )


def test_embedding_of_one_and_of_none() -> None:
    check(lambda w, i: functional.embedding(i, w), data(10, 6), torch.tensor(3))
    check(lambda w, i: functional.embedding(i, w), data(10, 6), torch.empty(2, 0).long())
    check(
        lambda w, i: functional.embedding(i, w),
        data(10, 6),
        torch.tensor([3, 3], dtype=torch.int32),
    )


@pytest.mark.parametrize("norm", [2.0, 1.0, 3.0, float("inf")])
def test_embedding_max_norm(norm: float) -> None:
    def renormed(w: torch.Tensor, i: torch.Tensor) -> Any:
        w = w.clone()
        return functional.embedding(i, w, max_norm=1.0, norm_type=norm), w

    check(renormed, data(10, 6), at(5, below=10), backward=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("padding", [None, 2])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_embedding_bag(mode: str, padding: int | None, last: bool, dtype: torch.dtype) -> None:
    offsets = torch.tensor([0, 3, 3, 7] + ([12] if last else []))  # one bag is empty
    check(
        lambda w, i, o: functional.embedding_bag(
            i, w, o, mode=mode, padding_idx=padding, include_last_offset=last
        ),
        data(10, 6, dtype=dtype),
        at(12, below=10),
        offsets,
    )


def test_embedding_bag_weights_and_rectangles() -> None:
    offsets = torch.tensor([0, 3, 3, 7])
    check(
        lambda w, p, i, o: functional.embedding_bag(i, w, o, mode="sum", per_sample_weights=p),
        data(10, 6),
        data(12),
        at(12, below=10),
        offsets,
    )
    check(lambda w, i: functional.embedding_bag(i, w), data(10, 6), at(4, 3, below=10))


def test_embedding_bag_scaled_by_frequency(device: torch.device) -> None:
    """Each row's gradient is divided by how often it occurs (the CPU kernel counts other rows)."""
    weight = torch.zeros(5, 2, device=device, requires_grad=True)
    index = torch.tensor([[1, 1, 2], [3, 3, 3]], device=device)
    functional.embedding_bag(index, weight, mode="sum", scale_grad_by_freq=True).sum().backward()
    assert weight.grad is not None
    assert weight.grad[:, 0].tolist() == [0, 1, 1, 1, 0]


def test_one_hot_and_cross_entropy() -> None:
    check(lambda i: functional.one_hot(i, 7), at(4, 3, below=7))
    check(functional.cross_entropy, data(8, 7), at(8, below=7))
