"""Matrix products against the CPU's."""

from __future__ import annotations

from collections.abc import Callable

import compare
import pytest
import torch
from both_devices import check, data
from torch.nn import functional

pytestmark = pytest.mark.usefixtures("no_fallback")

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
NUMBERS = [*FLOATS, torch.int64, torch.int32, torch.int8, torch.uint8, torch.complex64]

# name: function, shapes of its arguments
PRODUCTS: dict[str, tuple[Callable[..., torch.Tensor], list[tuple[int, ...]]]] = {
    "mm": (torch.mm, [(5, 7), (7, 3)]),
    "mm of nothing": (torch.mm, [(0, 7), (7, 3)]),
    "mm over nothing": (torch.mm, [(5, 0), (0, 3)]),
    "bmm": (torch.bmm, [(2, 5, 7), (2, 7, 3)]),
    "bmm of larger matrices": (torch.bmm, [(8, 48, 64), (8, 64, 40)]),
    "bmm of nothing": (torch.bmm, [(0, 5, 7), (0, 7, 3)]),
    "mv": (torch.mv, [(5, 7), (7,)]),
    "dot": (torch.dot, [(7,), (7,)]),
    "dot over nothing": (torch.dot, [(0,), (0,)]),
    "vdot": (torch.vdot, [(7,), (7,)]),
    "addmm": (torch.addmm, [(3,), (5, 7), (7, 3)]),
    "addmm of a matrix": (torch.addmm, [(5, 3), (5, 7), (7, 3)]),
    "baddbmm": (torch.baddbmm, [(2, 5, 3), (2, 5, 7), (2, 7, 3)]),
    "baddbmm broadcast": (torch.baddbmm, [(5, 1), (2, 5, 7), (2, 7, 3)]),
    "addbmm": (torch.addbmm, [(5, 3), (2, 5, 7), (2, 7, 3)]),
    "addmv": (torch.addmv, [(5,), (5, 7), (7,)]),
    "addmv of a number": (torch.addmv, [(), (5, 7), (7,)]),
    "addr": (torch.addr, [(5, 3), (5,), (3,)]),
    "addr of a number": (torch.addr, [(), (5,), (3,)]),
    "outer": (torch.outer, [(5,), (3,)]),
    "matmul 4d": (torch.matmul, [(2, 3, 4, 5), (2, 3, 5, 6)]),
    "matmul broadcast": (torch.matmul, [(3, 4, 5), (2, 1, 5, 6)]),
    "matmul folded": (torch.matmul, [(2, 3, 5), (5, 6)]),
    "linear": (functional.linear, [(2, 4, 5), (3, 5), (3,)]),
    "linear of a vector": (functional.linear, [(5,), (3, 5), (3,)]),
    "bilinear": (functional.bilinear, [(4, 5), (4, 6), (3, 5, 6), (3,)]),
    "einsum": (lambda a, b: torch.einsum("bij,bkj->bik", a, b), [(2, 3, 4), (2, 5, 4)]),
    "transposed": (lambda a, b: torch.mm(a.t(), b.t()), [(7, 5), (3, 7)]),
    "sliced": (lambda a, b: torch.mm(a[1:, ::2], b[:4]), [(5, 7), (6, 3)]),
}


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name: str, dtype: torch.dtype) -> None:
    function, shapes = PRODUCTS[name]
    backward = False if dtype.is_complex and name == "bilinear" else None
    check(function, *(data(*shape, dtype=dtype) for shape in shapes), backward=backward)


@pytest.mark.parametrize(("beta", "alpha"), [(0, 1), (1, 0.5), (2.5, 1), (0, 3), (-1, 0)])
@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (torch.addmm, [(5, 3), (5, 7), (7, 3)]),
        (torch.baddbmm, [(2, 5, 3), (2, 5, 7), (2, 7, 3)]),
        (torch.addbmm, [(5, 3), (2, 5, 7), (2, 7, 3)]),
        (torch.addmv, [(5,), (5, 7), (7,)]),
        (torch.addr, [(5, 3), (5,), (3,)]),
    ],
    ids=["addmm", "baddbmm", "addbmm", "addmv", "addr"],
)
def test_scaled_products(
    function: Callable[..., torch.Tensor],
    shapes: list[tuple[int, ...]],
    beta: float,
    alpha: float,
) -> None:
    check(lambda *a: function(*a, beta=beta, alpha=alpha), *(data(*shape) for shape in shapes))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_zero_beta_ignores_nan(dtype: torch.dtype) -> None:
    nan = torch.full((5, 3), torch.nan, dtype=dtype)
    check(
        lambda *a: torch.addmm(*a, beta=0),
        nan,
        data(5, 7, dtype=dtype),
        data(7, 3, dtype=dtype),
        backward=False,
    )


def test_large_integers_are_exact() -> None:
    big = torch.randint(-(2**40), 2**40, (4, 6))
    check(torch.mm, big, torch.randint(-(2**40), 2**40, (6, 5)))


def test_in_place_and_out() -> None:
    def run(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> list[torch.Tensor]:
        out = torch.empty(5, 3, device=a.device)
        torch.mm(a, b, out=out)
        return [c.clone().addmm_(a, b, alpha=2), out]

    check(run, data(5, 7), data(7, 3), data(5, 3), backward=False)


@pytest.mark.parametrize("gelu", [False, True])
def test_addmm_activation(gelu: bool) -> None:
    check(
        lambda *a: torch._addmm_activation(*a, use_gelu=gelu),
        data(3),
        data(5, 7),
        data(7, 3),
        backward=False,
    )


def test_addr_of_bool() -> None:
    check(torch.addr, *(data(*shape, dtype=torch.bool) for shape in [(5, 3), (5,), (3,)]))


def test_int_mm() -> None:
    a = torch.randint(-128, 128, (32, 24), dtype=torch.int8)
    check(torch._int_mm, a, torch.randint(-128, 128, (24, 16), dtype=torch.int8))


def test_scaled_mm() -> None:
    def run(a: torch.Tensor, b: torch.Tensor, one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
        return torch._scaled_mm(a, b, one, two, out_dtype=torch.float32)

    a = data(16, 32).to(torch.float8_e4m3fn)
    b = data(16, 32).to(torch.float8_e4m3fn).t()
    check(run, a, b, torch.tensor(0.5), torch.tensor(2.0), backward=False)


def expected_grouped(a: torch.Tensor, b: torch.Tensor, ends: list[int]) -> torch.Tensor:
    """torch._grouped_mm, one product for each group."""
    pieces = []
    start = 0
    for group, end in enumerate(ends):
        if a.dim() == 2 and b.dim() == 3:
            pieces.append(a[start:end] @ b[group])
        elif a.dim() == 3:
            pieces.append(a[group] @ b[:, start:end])
        else:
            pieces.append(a[:, start:end] @ b[start:end])
        start = end
    if a.dim() == 3:
        return torch.cat(pieces, 1)
    return torch.cat(pieces) if b.dim() == 3 else torch.stack(pieces)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "ends",
    [[16, 16, 40, 48], [0, 0, 0, 48], [1, 2, 3, 48], [48, 48, 48, 48], [160, 200, 304, 400]],
    ids=str,
)
@pytest.mark.parametrize("kind", ["rows", "columns", "inner"])
def test_grouped_mm(kind: str, ends: list[int], dtype: torch.dtype) -> None:
    groups, total = len(ends), ends[-1]
    shapes = {
        "rows": ((total, 16), (groups, 16, 32)),
        "columns": ((groups, 32, 16), (16, total)),
        "inner": ((32, total), (total, 16)),
    }[kind]
    a, b = (data(*shape, dtype=dtype) for shape in shapes)
    offsets = torch.tensor(ends, dtype=torch.int32, device=compare.DEVICE)
    actual = torch._grouped_mm(a.to(compare.DEVICE), b.to(compare.DEVICE), offs=offsets)
    expected = expected_grouped(a, b, ends)
    tolerance = 1e-4 if dtype is torch.float32 else 2e-2
    compare.assert_close_to_scale(actual, expected, tolerance, kind)


def test_grouped_mm_gradients() -> None:
    ends = [16, 16, 40, 48]
    a, b = data(48, 16), data(4, 16, 32)
    offsets = torch.tensor(ends, dtype=torch.int32)

    def run(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if a.device.type == "cpu":
            return expected_grouped(a, b, ends)
        return torch._grouped_mm(a, b, offs=offsets.to(a.device))

    check(run, a, b)
