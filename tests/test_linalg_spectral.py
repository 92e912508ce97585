"""Singular values and eigenvalues. Vectors are checked by what they are for: signs are free."""

from __future__ import annotations

import compare
import pytest
import torch
from both_devices import check, data

pytestmark = pytest.mark.usefixtures("no_fallback")

ACCURACY = {torch.float32: 2e-6, torch.complex64: 2e-6, torch.float64: 1e-14}
ACCURACY[torch.complex128] = 1e-14
DTYPES = list(ACCURACY)


def assert_orthogonal(columns: torch.Tensor, accuracy: float) -> None:
    one = torch.eye(columns.shape[-1], dtype=columns.dtype).expand(*columns.shape[:-2], -1, -1)
    torch.testing.assert_close(columns.mH @ columns, one, rtol=0, atol=4 * accuracy)


def assert_svd(a: torch.Tensor, full: bool) -> None:
    """Asserts that the device's singular values and vectors are those of `a`."""
    accuracy = ACCURACY[a.dtype]
    on_device = a.to(compare.DEVICE)
    result = torch.linalg.svd(on_device, full_matrices=full)
    expected = torch.linalg.svd(a, full_matrices=full)
    for part, wanted in zip(result, expected, strict=True):
        assert part.device.type == compare.DEVICE
        assert (part.shape, part.dtype) == (wanted.shape, wanted.dtype)
    u, s, vh = (t.cpu() for t in result)
    scale = float(expected.S.max()) if expected.S.numel() else 1.0
    torch.testing.assert_close(s, expected.S, rtol=0, atol=4 * accuracy * scale)
    torch.testing.assert_close(torch.linalg.svdvals(on_device).cpu(), s, rtol=accuracy, atol=0)
    least = s.shape[-1]
    rebuilt = (u[..., :least] * s.unsqueeze(-2).to(a.dtype)) @ vh[..., :least, :]
    torch.testing.assert_close(rebuilt, a, rtol=0, atol=4 * accuracy * scale)
    assert_orthogonal(u, accuracy)
    assert_orthogonal(vh.mH, accuracy)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(4, 4), (2, 5, 3), (3, 4)])
@pytest.mark.parametrize("full", [False, True])
def test_svd(shape: tuple[int, ...], full: bool, dtype: torch.dtype) -> None:
    assert_svd(data(*shape, dtype=dtype), full)


@pytest.mark.parametrize(
    "a",
    [
        torch.zeros(3, 3),
        torch.eye(4),
        torch.ones(4, 3) * 1e-30,
        torch.ones(3, 4) * 1e30,
        torch.diag(torch.tensor([1e8, 1.0, 1e-8])),
        torch.tensor([[1.0, 1.0], [1.0, 1.0 + 2e-7]]),
        torch.tensor([[-2.0]]),
    ],
)
def test_svd_of_special_matrices(a: torch.Tensor) -> None:
    assert_svd(a, True)


def test_a_larger_svd() -> None:
    a = data(40, 24, dtype=torch.float64)
    assert_svd(a, False)
    # Of rank 5.
    assert_svd(a[:, :5] @ a[:5, :], True)


def test_svd_gradient() -> None:
    def run(a: torch.Tensor) -> list[torch.Tensor]:
        u, s, vh = torch.linalg.svd(a, full_matrices=False)
        return [s, u @ vh, torch.linalg.matrix_norm(a, "nuc"), torch.linalg.pinv(a)]

    check(run, torch.diag(torch.tensor([3.0, 2.0, 1.0])) + 0.1 * data(3, 3), tolerance=1e-3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(4, 4), (2, 5, 5), (1, 1)])
@pytest.mark.parametrize("triangle", ["L", "U"])
def test_eigh(shape: tuple[int, ...], triangle: str, dtype: torch.dtype) -> None:
    a, accuracy = data(*shape, dtype=dtype), ACCURACY[dtype]
    a = a + torch.eye(shape[-1], dtype=dtype)  # and the other triangle is not looked at
    values, vectors = (t.cpu() for t in torch.linalg.eigh(a.to(compare.DEVICE), UPLO=triangle))
    expected, _ = torch.linalg.eigh(a, UPLO=triangle)
    assert values.dtype == expected.dtype
    scale = float(expected.abs().max())
    torch.testing.assert_close(values, expected, rtol=0, atol=4 * accuracy * scale)
    half = a.tril(-1) if triangle == "L" else a.triu(1)
    diagonal = a.diagonal(dim1=-2, dim2=-1).real.to(dtype).diag_embed()
    whole = half + half.mH + diagonal
    rebuilt = (vectors * values.unsqueeze(-2).to(dtype)) @ vectors.mH
    torch.testing.assert_close(rebuilt, whole, rtol=0, atol=8 * accuracy * scale)
    assert_orthogonal(vectors, 2 * accuracy)


@pytest.mark.parametrize("n", [4, 30])
def test_eigenvalues_that_are_equal(n: int) -> None:
    q, _ = torch.linalg.qr(data(n, n, dtype=torch.float64))
    wanted = torch.arange(n, dtype=torch.float64).div(3, rounding_mode="floor")
    a = (q * wanted) @ q.mT
    values, vectors = (t.cpu() for t in torch.linalg.eigh(a.to(compare.DEVICE)))
    assert bool((values.diff() >= 0).all())
    torch.testing.assert_close(values, wanted, rtol=0, atol=1e-13 * n)
    torch.testing.assert_close((vectors * values) @ vectors.mT, a, rtol=0, atol=1e-12)


def test_eigh_gradient() -> None:
    def run(a: torch.Tensor) -> list[torch.Tensor]:
        a = a + a.mT
        values, vectors = torch.linalg.eigh(a)
        return [values, vectors @ values.exp().diag() @ vectors.mT, torch.linalg.eigvalsh(a)]

    check(run, torch.diag(torch.tensor([3.0, 2.0, 1.0])) + 0.1 * data(3, 3), tolerance=1e-3)


def test_ranks_and_conditions() -> None:
    a = data(5, 3) @ data(3, 4)
    check(
        lambda a: [torch.linalg.matrix_rank(a), torch.linalg.matrix_norm(a, 2)],
        a,
        backward=False,
    )
    check(lambda a: torch.linalg.cond(a), data(3, 3) + 3 * torch.eye(3), backward=False)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (2, 0, 0)])
def test_nothing(shape: tuple[int, ...]) -> None:
    # PyTorch's CPU and other devices differ in the layout of v.
    check(
        lambda a: [torch.linalg.svdvals(a), *(t.contiguous() for t in torch.linalg.svd(a))],
        data(*shape),
        backward=False,
    )
    check(lambda a: tuple(torch.linalg.eigh(a)), data(2, 0, 0), backward=False)
