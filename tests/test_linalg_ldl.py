"""LDL factorizations, and solving with them, against the CPU."""

from __future__ import annotations

import pytest
import torch
from both_devices import check, data

pytestmark = pytest.mark.usefixtures("no_fallback")

NEAR = 2e-3


def symmetric(*shape: int, dtype: torch.dtype, hermitian: bool) -> torch.Tensor:
    a = data(*shape, dtype=dtype)
    return a + (a.mH if hermitian else a.mT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex128])
@pytest.mark.parametrize("hermitian", [False, True])
@pytest.mark.parametrize("shape", [(4, 6, 6), (0, 3, 3)])
def test_ldl(shape: tuple[int, ...], hermitian: bool, dtype: torch.dtype) -> None:
    def run(a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
        ld, pivots, info = torch.linalg.ldl_factor_ex(a, hermitian=hermitian)
        solution = torch.linalg.ldl_solve(ld, pivots, b, hermitian=hermitian)
        return [ld, pivots, info, solution]

    a = symmetric(*shape, dtype=dtype, hermitian=hermitian)
    check(run, a, data(*shape[:-1], 2, dtype=dtype), backward=False, tolerance=NEAR)


def test_blocks_of_two() -> None:
    """Zeros on the diagonal ask for them, in some matrices of a batch and not in others."""
    a = symmetric(3, 5, 5, dtype=torch.float64, hermitian=False)
    a[0].fill_diagonal_(0)
    a[1] = torch.eye(5) * 3
    a[2, 1:3, 1:3] = torch.tensor([[0.0, 7.0], [7.0, 0.0]])
    check(lambda a: tuple(torch.linalg.ldl_factor_ex(a)), a, backward=False)
    check(
        lambda a, b: torch.linalg.ldl_solve(*torch.linalg.ldl_factor(a), b),
        a,
        data(5, 3, dtype=torch.float64),
        backward=False,
    )


def test_singular_matrices() -> None:
    a = torch.stack([torch.zeros(3, 3), torch.eye(3), torch.diag(torch.tensor([1.0, 0.0, 2.0]))])
    check(lambda a: tuple(torch.linalg.ldl_factor_ex(a)), a, backward=False)


def test_only_the_lower_triangle_counts() -> None:
    check(
        lambda a: tuple(torch.linalg.ldl_factor_ex(a)),
        data(4, 4),
        backward=False,
        tolerance=NEAR,
    )
