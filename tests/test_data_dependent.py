"""Operators whose result's shape depends on values, masks as indices, and values on the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from compare import assert_same, dispatch_stats, named_tensors

Op = Callable[..., Any]

X = torch.arange(24.0).reshape(2, 3, 4)
ALL = X % 3 == 0
ROWS = torch.tensor([True, False])
PLANE = torch.tensor([[True, False, True], [False, True, False]])
LAST = torch.tensor([True, False, True, False])
INDEX = torch.tensor([1, 0, 1])


class Inputs:
    """The tensors above, on one device."""

    def __init__(self, place: torch.device | str) -> None:
        self.x = X.to(place, copy=True)
        self.all = ALL.to(place)
        self.rows = ROWS.to(place)
        self.plane = PLANE.to(place)
        self.last = LAST.to(place)
        self.index = INDEX.to(place)
        self.place = place

    def tensor(self, value: Any) -> torch.Tensor:
        return torch.tensor(value, device=self.place)


def assert_same_results(op: Op, device: torch.device) -> None:
    expected, actual = op(Inputs("cpu")), op(Inputs(device))
    pairs = list(zip(named_tensors(actual), named_tensors(expected), strict=True))
    if not pairs:
        assert actual == expected
    for (name, got), (_, want) in pairs:
        assert_same(got, want, what=name)


TAKES: dict[str, Op] = {
    "mask": lambda i: i.x[i.all],
    "mask of rows": lambda i: i.x[i.rows],
    "mask of leading dims": lambda i: i.x[i.plane],
    "mask of last dim": lambda i: i.x[..., i.last],
    "mask with index": lambda i: i.x[i.plane, i.index],
    "mask with integer": lambda i: i.x[i.plane, 0],
    "mask apart from index": lambda i: i.x[i.index[:2], :, i.last],
    "mask and slice": lambda i: i.x[i.rows, 1:],
    "mask behind a new dim": lambda i: i.x[None][:, i.rows],
    "two masks": lambda i: i.x[i.rows, i.plane[0][:3] & True][:, i.last],
    "mask of transposed": lambda i: i.x.transpose(0, 2)[i.all.transpose(0, 2)],
    "mask that holds nothing": lambda i: i.x[i.x < 0],
    "mask that holds everything": lambda i: i.x[i.x >= 0],
    "mask of an empty tensor": lambda i: i.x[:0][i.all[:0]],
    "0-d mask": lambda i: i.x[i.all.any()],
    "0-d false mask": lambda i: i.x[i.all.all()],
    "python bool": lambda i: i.x[True],
    "mask on the host": lambda i: i.x[ROWS],
    "index on the host": lambda i: i.x[torch.tensor([1, 1, 0])],
    "lists": lambda i: i.x[[0, 1], [2, 1]],
    "list of bools": lambda i: i.x[[True, False]],
    "gradient of a mask": lambda i: torch.autograd.grad(
        i.x.requires_grad_()[i.all].pow(2).sum(), i.x
    ),
    "gradient of a row mask": lambda i: torch.autograd.grad(
        i.x.requires_grad_()[i.plane].pow(2).sum(), i.x
    ),
    "nonzero": lambda i: i.all.nonzero(),
    "nonzero of floats": lambda i: (i.x - 5).nonzero(),
    "nonzero as tuple": lambda i: i.plane.nonzero(as_tuple=True),
    "nonzero of a vector": lambda i: i.last.nonzero(),
    "nonzero of 0-d": lambda i: i.tensor(3).nonzero(),
    "nonzero of 0-d zero": lambda i: i.tensor(0).nonzero(),
    "nonzero of nothing": lambda i: i.x[:0].nonzero(),
    "nonzero, all zero": lambda i: (i.x < 0).nonzero(),
    "nonzero of bfloat16": lambda i: i.x.to(torch.bfloat16).nonzero(),
    "argwhere": lambda i: torch.argwhere(i.plane),
    "where without values": lambda i: torch.where(i.all),
    "masked_select": lambda i: i.x.masked_select(i.all),
    "masked_select broadcast": lambda i: i.x.masked_select(i.last),
    "masked_select broadcast self": lambda i: i.x[0, 0].masked_select(i.all),
    "gradient of masked_select": lambda i: torch.autograd.grad(
        i.x.requires_grad_().masked_select(i.last).pow(2).sum(), i.x
    ),
    "unique": lambda i: torch.unique(i.index),
    "unique with all": lambda i: torch.unique(i.index, return_inverse=True, return_counts=True),
    "unique rows": lambda i: torch.unique(i.x.long() % 2, dim=1),
    "unique_consecutive": lambda i: torch.unique_consecutive(
        i.tensor([1, 1, 2, 2, 2, 1]), return_inverse=True, return_counts=True
    ),
    "repeat_interleave of counts": lambda i: torch.repeat_interleave(i.tensor([2, 0, 3])),
    "repeat_interleave": lambda i: torch.repeat_interleave(i.x, i.tensor([2, 0, 3]), dim=1),
    "repeat_interleave by a number": lambda i: torch.repeat_interleave(i.x, 2, dim=0),
    "repeat_interleave, size given": lambda i: torch.repeat_interleave(
        i.x, i.index, dim=1, output_size=2
    ),
    "bincount": lambda i: torch.bincount(i.index),
    "bincount weighted": lambda i: torch.bincount(i.index, i.x[0, 0, :3], minlength=5),
    "tril_indices": lambda i: torch.tril_indices(3, 3, device=i.place),
    "combinations": lambda i: torch.combinations(i.index),
}


@pytest.mark.parametrize("name", TAKES)
def test_take(name: str, device: torch.device, no_fallback: None) -> None:
    assert_same_results(TAKES[name], device)


def put(key: Callable[[Inputs], Any], value: Callable[[Inputs], Any]) -> Op:
    def run(i: Inputs) -> torch.Tensor:
        i.x[key(i)] = value(i)
        return i.x

    return run


PUTS: dict[str, Op] = {
    "number": put(lambda i: i.all, lambda i: 0),
    "number in rows": put(lambda i: i.rows, lambda i: 2.5),
    "number in leading dims": put(lambda i: i.plane, lambda i: 7),
    "number in last dim": put(lambda i: (..., i.last), lambda i: 7),
    "number in middle dim": put(lambda i: (slice(None), i.plane[0]), lambda i: -1),
    "scalar on the host": put(lambda i: i.all, lambda i: torch.tensor(5.0)),
    "scalar": put(lambda i: i.all, lambda i: i.tensor(5.0)),
    "scalar of another dtype": put(lambda i: i.all, lambda i: i.tensor(5)),
    "one element": put(lambda i: i.all, lambda i: i.tensor([5.0])),
    "vector": put(lambda i: i.all, lambda i: torch.arange(8.0, device=i.place)),
    "row": put(lambda i: i.plane, lambda i: torch.arange(4.0, device=i.place)),
    "rows": put(lambda i: i.plane, lambda i: torch.arange(12.0, device=i.place).view(3, 4)),
    "mask and index": put(lambda i: (i.index[:2], slice(None), i.last), lambda i: -1.0),
    "what it held": put(lambda i: i.all, lambda i: i.x[i.all] + 1),
    "mask on the host": put(lambda i: ROWS, lambda i: 3.0),
    "index on the host": put(lambda i: torch.tensor([0, 1]), lambda i: 3.0),
    "nothing": put(lambda i: i.x < 0, lambda i: 3.0),
    "view": lambda i: (i.x[1:, :, ::2].__setitem__(i.all[1:, :, ::2], 9), i.x)[1],
    "index_put": lambda i: i.x.index_put((i.all,), i.tensor(1.0)),
    "index_put vector": lambda i: i.x.index_put((i.all,), torch.arange(8.0, device=i.place)),
    "index_put_ accumulate": lambda i: i.x.index_put_((i.all,), i.tensor(1.0), accumulate=True),
    "index_put_ rows accumulate": lambda i: i.x.index_put_(
        (i.index,), torch.ones(3, 3, 4, device=i.place), accumulate=True
    ),
    "masked_fill": lambda i: i.x.masked_fill(i.last, -1),
    "masked_fill_ with a host scalar": lambda i: i.x.masked_fill_(i.all, torch.tensor(4.0)),
    "masked_scatter": lambda i: i.x.masked_scatter(i.all, i.x.flatten() + 100),
    "where": lambda i: torch.where(i.all, i.x, 0.0),
    "in place op on a masked view": lambda i: (i.x[i.rows].mul_(2), i.x),
    "gradient": lambda i: torch.autograd.grad(
        (put(lambda j: j.all, lambda j: 0.0)(_doubled(i)) ** 2).sum(), i.leaf
    ),
}


def _doubled(inputs: Inputs) -> Inputs:
    inputs.leaf = inputs.x.clone().requires_grad_()  # type: ignore[attr-defined]
    inputs.x = inputs.leaf * 2  # type: ignore[attr-defined]
    return inputs


@pytest.mark.parametrize("name", PUTS)
def test_put(name: str, device: torch.device, no_fallback: None) -> None:
    assert_same_results(PUTS[name], device)


HOST_VALUES: dict[str, Op] = {
    "item": lambda i: i.x[1, 2, 3].item(),
    "item of one element": lambda i: i.x[:1, :1, :1].item(),
    "item of bool": lambda i: i.all[0, 0, 0].item(),
    "item of integer": lambda i: i.index[0].item(),
    "item of bfloat16": lambda i: i.x[0, 0, 1].to(torch.bfloat16).item(),
    "item of complex": lambda i: i.x[0, 0, 1].to(torch.complex64).item(),
    "tolist": lambda i: i.x[:, 1].tolist(),
    "bool": lambda i: bool((i.x > 5).any()),
    "int": lambda i: int(i.index.sum()),
    "float": lambda i: float(i.x.sum()),
    "as an index": lambda i: list(range(10))[i.index[0]],
    "format": lambda i: f"{i.index[0]:d}",
    "iteration": lambda i: [int(v) for v in i.index],
    "contains": lambda i: 3.0 in i.x,
    "equal": lambda i: torch.equal(i.x, i.x.clone()),
    "not equal": lambda i: torch.equal(i.x, i.x + 1),
    "equal shapes": lambda i: torch.equal(i.x, i.x[:1]),
    "equal, nothing": lambda i: torch.equal(i.x[:0], i.x[:0]),
    "allclose": lambda i: torch.allclose(i.x, i.x + 1e-7),
    "not allclose": lambda i: torch.allclose(i.x, i.x + 1),
    "is_nonzero": lambda i: torch.is_nonzero(i.index[0]),
    "length": lambda i: len(i.x),
    "numpy": lambda i: i.x.cpu().numpy().sum(),
    "view of the last element": lambda i: [i.x.view(-1)[k].item() for k in range(24)],
}


@pytest.mark.parametrize("name", HOST_VALUES)
def test_host_value(name: str, device: torch.device, no_fallback: None) -> None:
    assert_same_results(HOST_VALUES[name], device)


ERRORS: dict[str, Op] = {
    "mask of another shape": lambda i: i.x[:, i.rows],
    "mask of another shape, put": put(lambda i: (slice(None), i.rows), lambda i: 0),
    "too many indices": lambda i: i.x[i.index, i.index, i.index, i.index],
    "float index": lambda i: i.x[i.x],
    "indices that do not broadcast": lambda i: i.x[i.index, i.index[:2]],
    "values that do not fit": put(lambda i: i.all, lambda i: torch.arange(5.0, device=i.place)),
    "index into nothing": lambda i: i.x[:0][i.index],
    "put into nothing": lambda i: i.x[:0].__setitem__(i.index, 1.0),
    "dtypes": put(lambda i: i.index, lambda i: torch.ones(3, 3, 4, device=i.place).double()),
    "masked_select without bools": lambda i: i.x.masked_select(i.index),
    "masked_select that does not broadcast": lambda i: i.x.masked_select(i.rows),
    "item of many": lambda i: i.x.item(),
    "bool of many": lambda i: bool(i.x),
    "bool of nothing": lambda i: bool(i.x[:0]),
    "negative bincount": lambda i: torch.bincount(i.index - 5),
    "negative repeats": lambda i: torch.repeat_interleave(i.index - 5),
}


@pytest.mark.parametrize("name", ERRORS)
def test_error(name: str, device: torch.device) -> None:
    with pytest.raises((RuntimeError, IndexError, ValueError)) as expected:
        ERRORS[name](Inputs("cpu"))
    with pytest.raises((RuntimeError, IndexError, ValueError)) as actual:
        ERRORS[name](Inputs(device))
    assert actual.type is expected.type
    assert str(actual.value).split("\n")[0] == str(expected.value).split("\n")[0]


def test_device_index_for_a_host_tensor(device: torch.device) -> None:
    with pytest.raises(RuntimeError, match="indices should be either on cpu or on the same device"):
        X[INDEX.to(device)]


def test_nonzero_static(device: torch.device) -> None:
    plane = PLANE.to(device)
    for size, fill in ((2, -1), (3, -1), (5, 7), (0, -1)):
        expected = torch.nonzero_static(PLANE, size=size, fill_value=fill)
        actual = torch.nonzero_static(plane, size=size, fill_value=fill)
        assert actual.cpu().tolist() == expected.tolist()


def test_nonzero_of_many(device: torch.device) -> None:
    x = torch.rand(300, 500) < 0.01
    assert_same(x.to(device).nonzero(), x.nonzero())
    assert_same(
        torch.rand(300, 500).masked_fill(~x, 0).to(device)[x.to(device)].sign(),
        torch.ones(int(x.sum())),
    )


def test_filling_by_a_mask_does_not_wait(device: torch.device) -> None:
    x, mask = X.to(device), ALL.to(device)
    x[mask] = 1.0
    before = dispatch_stats()["programs"]
    x[mask] = 2.0
    # One makes the number a tensor, one fills: nothing counts what the mask holds.
    assert dispatch_stats()["programs"] <= before + 2


@pytest.mark.single_operators
def test_other_counts_need_no_compilation(device: torch.device) -> None:
    x = torch.arange(50.0, device=device)
    x[x > 10]
    x.masked_select(x > 10)
    torch.nonzero(x > 10)
    before = dispatch_stats()
    for bound in (3, 20, 47, 60):
        assert x[x > bound].cpu().tolist() == list(range(bound + 1, 50))
        assert x.masked_select(x > bound).cpu().tolist() == list(range(bound + 1, 50))
        assert (x > bound).nonzero().cpu().flatten().tolist() == list(range(bound + 1, 50))
    after = dispatch_stats()
    assert after["compiles"] + after["loads"] == before["compiles"] + before["loads"]
