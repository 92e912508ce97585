"""Determinants, linear systems, least squares and the matrix exponential against the CPU."""

from __future__ import annotations

import compare
import pytest
import torch
from both_devices import check, data

pytestmark = pytest.mark.usefixtures("no_fallback")

DTYPES = [torch.float32, torch.complex128]
NEAR = 2e-3  # results of well conditioned but random matrices


def regular(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Random matrices far from singular ones."""
    return data(*shape, dtype=dtype) + 3 * torch.eye(shape[-1], dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(4, 4), (2, 3, 3), (0, 3, 3), (0, 0)])
@pytest.mark.parametrize("transposed", [False, True])
def test_determinant(shape: tuple[int, ...], dtype: torch.dtype, transposed: bool) -> None:
    """The backward formula reads the factors by the layout of the argument."""

    def run(a: torch.Tensor) -> list[torch.Tensor]:
        a = a.mT if transposed else a
        return [torch.linalg.det(a), *torch.linalg.slogdet(a)]

    check(run, regular(*shape, dtype=dtype), tolerance=NEAR)


def test_determinant_of_singular_matrices() -> None:
    a = torch.tensor([[[1.0, 2.0], [2.0, 4.0]], [[0.0, 0.0], [0.0, 0.0]], [[0.0, 1.0], [1.0, 0.0]]])
    check(lambda a: [torch.linalg.det(a), *torch.linalg.slogdet(a)], a, backward=False)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("left", [True, False])
def test_solve(left: bool, dtype: torch.dtype) -> None:
    def run(a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
        solve = torch.linalg.solve
        return [solve(a, b, left=left), solve(a.mT, b, left=left), solve(a[0], b, left=left)]

    check(run, regular(2, 3, 3, dtype=dtype), data(2, 3, 3, dtype=dtype), tolerance=NEAR)


def test_solve_for_vectors_and_nothing() -> None:
    a, b = regular(2, 3, 3), data(2, 3)
    check(
        lambda a, b: [torch.linalg.solve(a, b), torch.linalg.solve(a[0], b[0])],
        a,
        b,
        tolerance=NEAR,
    )
    check(torch.linalg.solve, data(0, 0), data(0, 2), backward=False)


def test_solve_says_what_is_singular() -> None:
    singular = torch.tensor([[1.0, 2.0], [2.0, 4.0]])
    check(lambda a: torch.linalg.solve_ex(a, a).info, singular, backward=False)
    on_device = singular.to(compare.DEVICE)
    with pytest.raises(RuntimeError, match="singular"):
        torch.linalg.solve(on_device, on_device)


@pytest.mark.parametrize("driver", ["gels", "gelsy", "gelsd", "gelss"])
@pytest.mark.parametrize("shape", [(5, 3), (2, 4, 4), (3, 5)])
def test_least_squares(shape: tuple[int, ...], driver: str) -> None:
    def run(a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
        # Only the CPU has the solution in columns.
        return [t.contiguous() for t in torch.linalg.lstsq(a, b, driver=driver)]

    check(run, data(*shape), data(*shape[:-1], 2), backward=False, tolerance=NEAR)


def test_least_squares_of_low_rank() -> None:
    a, b = data(5, 2) @ data(2, 4), data(5, 2)
    for driver in ("gelsy", "gelsd"):
        check(
            lambda a, b, d: [
                t.contiguous() for t in torch.linalg.lstsq(a, b, rcond=1e-4, driver=d)
            ],
            a,
            b,
            driver,
            backward=False,
            tolerance=NEAR,
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex128])
def test_matrix_exponential(dtype: torch.dtype) -> None:
    sizes = torch.tensor([0.0, 1e-3, 1.0, 20.0]).to(dtype)[:, None, None]
    check(torch.matrix_exp, data(4, 3, 3, dtype=dtype) * sizes, tolerance=NEAR)
    check(torch.matrix_exp, data(0, 3, 3, dtype=dtype), backward=False)


def test_matrix_exponential_of_what_is_no_number() -> None:
    a = torch.ones(2, 2, 2)
    a[0, 0, 0] = float("nan")
    assert torch.matrix_exp(a.to(compare.DEVICE)).cpu()[0].isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("transpose", [True, False])
def test_multiplication_by_reflectors(left: bool, transpose: bool, dtype: torch.dtype) -> None:
    check(
        lambda a, b: torch.ormqr(*torch.geqrf(a), b, left, transpose),
        data(4, 3, dtype=dtype),
        data(4, 4, dtype=dtype),
        backward=False,
        tolerance=NEAR,
    )


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (2, 0, 0)])
def test_factors_of_nothing(shape: tuple[int, ...]) -> None:
    check(
        lambda a: [
            tuple(torch.linalg.qr(a)),
            tuple(torch.linalg.qr(a, "complete")),
            tuple(torch.geqrf(a)),
        ],
        data(*shape),
        backward=False,
    )


@pytest.mark.filterwarnings("ignore:torch.cholesky is deprecated")
def test_the_older_cholesky() -> None:
    def run(a: torch.Tensor) -> list[torch.Tensor]:
        a = a @ a.mT + torch.eye(3, device=a.device)
        return [torch.cholesky(a), torch.cholesky(a, upper=True)]

    check(run, data(2, 3, 3), tolerance=NEAR)
    with pytest.raises(RuntimeError, match="leading minor of order 1"):
        torch.cholesky(torch.zeros(2, 2, device=compare.DEVICE))
