"""Factorizations, triangular systems, Fourier transforms and cross products against the CPU."""

from __future__ import annotations

import compare
import pytest
import torch
from both_devices import check, data

pytestmark = pytest.mark.usefixtures("no_fallback")

DTYPES = [torch.float32, torch.complex128]
SHAPES = [(4, 4), (2, 3, 3, 3), (0, 3, 3)]
NEAR = 2e-3  # results of well conditioned but random matrices


def positive(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Random positive definite matrices."""
    a = data(*shape, dtype=dtype)
    return a @ a.mH + torch.eye(shape[-1], dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_cholesky(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    a, b = positive(*shape, dtype=dtype), data(*shape, dtype=dtype)
    check(
        lambda a, b: [
            torch.linalg.cholesky_ex(a),
            torch.linalg.cholesky_ex(a, upper=True),
            torch.cholesky_solve(b, torch.linalg.cholesky_ex(a).L),
            torch.cholesky_inverse(torch.linalg.cholesky_ex(a).L),
        ],
        a,
        b,
        backward=False,
        tolerance=NEAR,
    )


@pytest.mark.filterwarnings("ignore:torch.cholesky is deprecated")
def test_older_cholesky() -> None:
    check(torch.cholesky, torch.zeros(0, 5), backward=False)
    a = torch.eye(2, device="tpu")
    with pytest.raises(RuntimeError, match="cholesky: Expected result to be safely castable"):
        torch.cholesky(a, out=a.long())


def test_cholesky_gradient() -> None:
    check(
        lambda a: torch.linalg.cholesky(a @ a.mT + torch.eye(4, device=a.device)),
        data(2, 4, 4),
        tolerance=NEAR,
    )


def test_cholesky_says_where_it_fails() -> None:
    a = torch.stack([torch.diag(torch.tensor(d)) for d in ([1.0, 2, -1, 3], [1.0] * 4, [0.0] * 4)])
    check(lambda a: torch.linalg.cholesky_ex(a).info, a, backward=False)
    with pytest.raises(RuntimeError, match="leading minor of order 3"):
        torch.linalg.cholesky(a[0].to(compare.DEVICE))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("upper", [False, True])
def test_triangular(shape: tuple[int, ...], upper: bool, dtype: torch.dtype) -> None:
    a = positive(*shape, dtype=dtype)
    b = data(shape[-1], 2, dtype=dtype)
    solve = torch.linalg.solve_triangular
    check(
        lambda a, b: [
            solve(a, b, upper=upper),
            solve(a, b.mT, upper=upper, left=False),
            solve(a / 9, b, upper=upper, unitriangular=True),
        ],
        a,
        b,
        backward=dtype is torch.float32,
        tolerance=NEAR,
    )


@pytest.mark.filterwarnings("ignore:torch.triangular_solve")
def test_the_older_triangular_solve() -> None:
    check(
        lambda b, a: [tuple(torch.triangular_solve(b, a, True, t)) for t in (False, True)],
        data(4, 2),
        positive(4, 4, dtype=torch.float32),
        backward=False,
        tolerance=NEAR,
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [*SHAPES, (2, 4), (2, 5, 3)])
def test_lu(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    check(
        lambda a: [
            tuple(torch.linalg.lu_factor_ex(a)),
            tuple(torch.linalg.lu(a)),
            torch.lu_unpack(*torch.linalg.lu_factor(a)),
        ],
        data(*shape, dtype=dtype),
        backward=False,
        tolerance=NEAR,
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_inverse_and_lu_solve(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    a, b = positive(*shape, dtype=dtype), data(*shape, dtype=dtype)

    def run(a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
        lu, pivots = torch.linalg.lu_factor(a)
        solve = torch.linalg.lu_solve
        solutions = [
            solve(lu, pivots, b, left=left, adjoint=adjoint)
            for left in (True, False)
            for adjoint in (True, False)
        ]
        return [torch.linalg.inv_ex(a).inverse, *solutions]

    check(run, a, b, backward=False, tolerance=NEAR)


def test_inverse_gradient_and_failure() -> None:
    check(torch.linalg.inv, positive(3, 4, 4, dtype=torch.float32), tolerance=NEAR)
    singular = torch.tensor([[1.0, 2.0], [2.0, 4.0]])
    check(lambda a: torch.linalg.inv_ex(a).info, singular, backward=False)
    with pytest.raises(RuntimeError, match="singular"):
        torch.linalg.inv(singular.to(compare.DEVICE))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3, 5), (2, 4, 3)])
def test_qr(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    a = data(*shape, dtype=dtype)
    modes = ["reduced", "complete", "r"]
    check(
        lambda a: [tuple(torch.linalg.qr(a, mode)) for mode in modes],
        a,
        backward=False,
        tolerance=NEAR,
    )
    # Only the CPU leaves the columns contiguous here.
    check(lambda a: [t.contiguous() for t in torch.geqrf(a)], a, backward=False, tolerance=NEAR)
    if shape[-2] >= shape[-1]:
        check(
            lambda a: torch.linalg.householder_product(*torch.geqrf(a)),
            a,
            backward=False,
            tolerance=NEAR,
        )


def test_orthogonal_initialization() -> None:
    """What `torch.nn.init.orthogonal_` does."""
    weight = torch.nn.init.orthogonal_(torch.empty(6, 4, device=compare.DEVICE)).cpu()
    torch.testing.assert_close(weight.T @ weight, torch.eye(4), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bfloat16])
def test_cross(dtype: torch.dtype) -> None:
    check(
        lambda a, b: [torch.linalg.cross(a, b), torch.cross(a.mT, b.mT, dim=0)],
        data(4, 3, dtype=dtype),
        data(4, 3, dtype=dtype),
        backward=dtype is torch.float32,
    )


@pytest.mark.parametrize("norm", ["forward", "backward", "ortho"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fft(dtype: torch.dtype, norm: str) -> None:
    x = data(3, 4, 6, 5, dtype=dtype)
    z = torch.complex(x, x.flip(0))
    backward = norm == "ortho"
    check(
        lambda z: [
            torch.fft.fft(z, dim=1, norm=norm),
            torch.fft.ifft2(z, dim=(3, 1), norm=norm),
        ],
        z,
        backward=backward,
    )
    check(
        lambda x: [
            torch.fft.rfft(x, norm=norm),
            torch.fft.rfft(x, 7, dim=0, norm=norm),
            torch.fft.rfft2(x, dim=(0, 2), norm=norm),
            torch.fft.ihfft(x, norm=norm),
        ],
        x,
        backward=backward,
    )
    check(
        lambda z: [
            torch.fft.irfft(z, norm=norm),
            torch.fft.irfft(z, 7, dim=1, norm=norm),
            torch.fft.irfftn(z, dim=(1, 2), norm=norm),
            torch.fft.hfft(z, norm=norm),
        ],
        z,
        backward=backward,
    )


def test_fft_of_four_dimensions() -> None:
    """Only the CPU has the result contiguous already."""
    z = data(3, 4, 6, 5, dtype=torch.complex64)
    check(lambda z: torch.fft.fftn(z).contiguous(), z, backward=False)
    check(lambda z: torch.fft.ifftn(z).contiguous(), z, backward=False)


def test_stft_and_back() -> None:
    def run(x: torch.Tensor) -> list[torch.Tensor]:
        window = torch.hann_window(16, device=x.device)
        spectrum = torch.stft(x, 16, 4, window=window, return_complex=True)
        return [spectrum, torch.istft(spectrum, 16, 4, window=window, length=x.shape[-1])]

    check(run, data(2, 100), backward=False, tolerance=1e-4)
