"""Pointwise functions, comparisons and activations against the CPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import compare
import pytest
import torch
from both_devices import check, data
from torch.nn import functional

pytestmark = pytest.mark.usefixtures("no_fallback")

HALVES = [torch.bfloat16, torch.float16]
FLOATS = [torch.float32, torch.float64, *HALVES]
INTEGERS = [torch.int64, torch.int32, torch.uint8]
COMPLEX = [torch.complex64, torch.complex128]
INF, NAN = math.inf, math.nan

Unary = Callable[[torch.Tensor], Any]
Binary = Callable[[Any, Any], Any]


def words(text: str) -> list[str]:
    """The words of a text."""
    return text.split()


# Functions defined on all real numbers.
UNARY: dict[str, Unary] = {
    name: getattr(torch, name)
    for name in words(
        "abs neg sign sgn floor ceil round trunc frac exp exp2 expm1 sin cos tan atan sinh cosh "
        "tanh asinh erf erfc sigmoid sinc relu square positive angle signbit isnan isinf isfinite "
        "isposinf isneginf i0 nan_to_num logical_not isreal deg2rad rad2deg"
    )
} | {name: getattr(torch.special, name) for name in words("i0e i1 i1e erfcx ndtr log_ndtr entr")}
# Functions of a number in (0, 1), a part of everyone's domain.
INSIDE: dict[str, Unary] = {
    name: getattr(torch, name)
    for name in words(
        "log log2 log10 log1p sqrt rsqrt reciprocal asin acos atanh erfinv lgamma digamma logit"
    )
} | {
    "ndtri": torch.special.ndtri,
    "polygamma": lambda x: [torch.polygamma(n, x) for n in (0, 1, 2, 4)],
    "acosh": lambda x: torch.acosh(x + 1),
    "logit eps": lambda x: torch.logit(x, eps=0.3),
}
NOT_FOR_HALVES = {"logit", "logit eps", "polygamma"}  # the CPU rounds every step of these
NO_HALF_KERNEL = {"erfcx", "ndtri", "log_ndtr"}
EXTREMES = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, -2.5, 50.0, -50.0, INF, -INF, NAN]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str, dtype: torch.dtype) -> None:
    if dtype in HALVES and name in NO_HALF_KERNEL:
        pytest.skip("the CPU has no kernel")
    function = UNARY[name]
    backward = dtype not in HALVES
    check(function, data(3, 4, dtype=dtype), backward=backward)
    if backward:
        check(function, data(dtype=dtype))
        check(function, data(2, 0, dtype=dtype))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", INSIDE)
def test_unary_inside(name: str, dtype: torch.dtype) -> None:
    if dtype in HALVES and name in NOT_FOR_HALVES | NO_HALF_KERNEL:
        pytest.skip("the CPU's own rounding dominates")
    x = (torch.rand(3, 4) * 0.8 + 0.1).to(dtype)
    check(INSIDE[name], x, backward=dtype not in HALVES)


@pytest.mark.parametrize("name", [*UNARY, *INSIDE])
def test_extremes(name: str) -> None:
    if name in ("i0", "polygamma"):
        pytest.skip("infinities have no agreed value")
    check((UNARY | INSIDE)[name], torch.tensor(EXTREMES), backward=False)


@pytest.mark.parametrize("dtype", [*INTEGERS, torch.bool], ids=str)
@pytest.mark.parametrize("name", [n for n in UNARY if n not in ("neg", "angle")])
def test_unary_integers(name: str, dtype: torch.dtype) -> None:
    x = data(3, 4, dtype=dtype)
    try:
        UNARY[name](x)
    except (RuntimeError, TypeError):
        pytest.skip("not defined on the CPU either")
    check(UNARY[name], x)


@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
@pytest.mark.parametrize(
    "name",
    words(
        "abs neg sgn exp sin cos sinh cosh tanh sigmoid angle sqrt rsqrt log reciprocal isnan "
        "isinf isfinite square asin acos atan asinh atanh log1p expm1 conj_physical"
    ),
)
def test_unary_complex(name: str, dtype: torch.dtype) -> None:
    check(getattr(torch, name), data(3, 4, dtype=dtype), backward=False)


ARITHMETIC: dict[str, Binary] = {
    "add": torch.add,
    "add alpha": lambda a, b: torch.add(a, b, alpha=3),
    "sub": torch.sub,
    "sub alpha": lambda a, b: torch.sub(a, b, alpha=2),
    "rsub": torch.rsub,
    "mul": torch.mul,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "fmax": torch.fmax,
    "fmin": torch.fmin,
    "eq": torch.eq,
    "ne": torch.ne,
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
    "logical_and": torch.logical_and,
    "logical_or": torch.logical_or,
    "logical_xor": torch.logical_xor,
    "atan2": torch.atan2,
    "copysign": torch.copysign,
    "heaviside": torch.heaviside,
    "xlogy": lambda a, b: torch.xlogy(a, abs(b)),
    "xlog1py": lambda a, b: torch.special.xlog1py(a, abs(b)),
}
# Those that divide: the second operand is not zero.
DIVISION: dict[str, Binary] = {
    "div": torch.div,
    "div trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "div floor": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "floor_divide": torch.floor_divide,
    "remainder": torch.remainder,
    "fmod": torch.fmod,
}
FLOAT_ONLY: dict[str, Binary] = {
    "hypot": torch.hypot,
    "nextafter": torch.nextafter,
    "logaddexp": torch.logaddexp,
    "logaddexp2": torch.logaddexp2,
    "ldexp": torch.ldexp,
    "pow": lambda a, b: torch.pow(a.abs(), b),
    "lerp": lambda a, b: [torch.lerp(a, b, 0.3), torch.lerp(a, b, 0.7), torch.lerp(a, b, b)],
    "addcmul": lambda a, b: torch.addcmul(a, b, b, value=0.3),
    "addcdiv": lambda a, b: torch.addcdiv(a, b, b.abs() + 1, value=0.3),
    "float_power": lambda a, b: torch.float_power(a.abs(), b),
}
NOT_FOR_BOOL = {"sub", "sub alpha", "rsub", "add alpha", "xlogy", "xlog1py"}
NOT_DIFFERENTIABLE = {"heaviside", "floor_divide"}


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.bool], ids=str)
@pytest.mark.parametrize("name", ARITHMETIC)
def test_binary(name: str, dtype: torch.dtype) -> None:
    if dtype is torch.bool and name in NOT_FOR_BOOL:
        pytest.skip("not defined")
    function = ARITHMETIC[name]
    backward = dtype in (torch.float32, torch.float64) and name not in NOT_DIFFERENTIABLE
    check(function, data(3, 4, dtype=dtype), data(3, 4, dtype=dtype), backward=backward)
    check(function, data(3, 1, dtype=dtype), data(4, dtype=dtype), backward=backward)
    if dtype is torch.float32:
        check(function, data(3, 4), data(), backward=backward)
        check(function, data(0, 4), data(4), backward=backward)
        check(function, torch.tensor(EXTREMES)[:, None], torch.tensor(EXTREMES), backward=False)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
@pytest.mark.parametrize("name", DIVISION)
def test_division(name: str, dtype: torch.dtype) -> None:
    function = DIVISION[name]
    backward = dtype in (torch.float32, torch.float64) and name not in NOT_DIFFERENTIABLE
    dividend, divisor = data(30, 4, dtype=dtype) * 5, data(4, dtype=dtype)
    divisor = torch.where(divisor == 0, 2, divisor)
    check(function, dividend, divisor, backward=backward)
    if dtype is torch.float32:
        check(function, torch.tensor(EXTREMES)[:, None], torch.tensor(EXTREMES), backward=False)
    for number in (3, -2.5):
        if dtype.is_floating_point or number == 3:
            check(lambda x, number=number: function(x, number), dividend, backward=backward)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", FLOAT_ONLY)
def test_binary_floats(name: str, dtype: torch.dtype) -> None:
    backward = dtype not in HALVES and name != "nextafter"
    if dtype is torch.float16 and name == "nextafter":
        pytest.skip("not defined")
    check(FLOAT_ONLY[name], data(3, 4, dtype=dtype), data(4, dtype=dtype), backward=backward)


NUMBERS: dict[str, Unary] = {
    "add": lambda x: [x + 2, 2 + x, x + 1, x.add(3, alpha=2)],
    "sub": lambda x: [x - 2, 2 - x, x - 1],
    "mul": lambda x: [x * 3, 3 * x, x * 1],
    "compare": lambda x: [x == 2, x != 2, x < 2, x <= 1, x > 0, x >= 1],
    "compare float": lambda x: [x == 2.5, x < 2.5, x > 0.1],
    "clamp": lambda x: [x.clamp(1, 3), x.clamp(min=1), x.clamp(max=2), x.clip(1, 2)],
    "clamp tensor": lambda x: [x.clamp(x[0], x[1]), x.clamp(min=x[0]), x.clamp(max=x[1])],
    "float": lambda x: [x + 0.3, x * 0.3, x / 3, x - 0.7, 1.7 / (x * x + 1)],
    "power": lambda x: [x**0, x**1, x**2, x**3, x**5],
    "base": lambda x: [torch.pow(2, x.abs()), torch.pow(1.0, x), torch.pow(2.5, x)],
    "masked_fill": lambda x: [x.masked_fill(x > 1, 1), x.masked_fill(x[0] > 1, x[0, 0].detach())],
    "where": lambda x: [torch.where(x > 1, x, 1), torch.where(x > 1, 2.5, x), x.where(x > 1, x[0])],
}


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.int32, torch.uint8], ids=str)
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers(name: str, dtype: torch.dtype) -> None:
    check(NUMBERS[name], data(3, 4, dtype=dtype), backward=dtype in (torch.float32, torch.float64))


def test_powers_of_floats() -> None:
    x = torch.rand(3, 4) + 0.2
    check(lambda x: [x**p for p in (0.5, -0.5, -1, -2, 2.5, 4, 0.0)], x)
    check(lambda x: [x.pow(torch.tensor(p)) for p in (2.0, 3.0)], data(3, 4), backward=False)
    check(lambda x: [x**2, x**0.5, x**2.5], data(3, dtype=torch.complex64), backward=False)
    big = torch.tensor([3, -3, 7], dtype=torch.int64)
    check(lambda x: [x**39, x.pow(torch.tensor([5, 40, 0]).to(x.device))], big)


def test_negative_powers_of_integers_are_refused() -> None:
    with pytest.raises(RuntimeError, match="negative integer powers"):
        torch.arange(3, device=compare.DEVICE) ** -1


PROMOTED = [torch.float32, torch.bfloat16, torch.float16, torch.int32, torch.uint8, torch.bool]


@pytest.mark.parametrize("left", PROMOTED, ids=str)
@pytest.mark.parametrize("right", PROMOTED, ids=str)
def test_promotion(left: torch.dtype, right: torch.dtype) -> None:
    def run(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> list[torch.Tensor]:
        return [a + b, a * c, a == b, a > c, torch.where(a > 0, a, b), torch.where(a > 0, c, a)]

    arguments = data(3, 4, dtype=left), data(4, dtype=right), data(dtype=right)
    check(run, *arguments, backward=False)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool], ids=str)
def test_bits(dtype: torch.dtype) -> None:
    a, b = data(3, 4, dtype=dtype), data(4, dtype=dtype)
    check(lambda a, b: [a & b, a | b, a ^ b, ~a, a & True, a | True, a ^ True], a, b)
    if dtype is not torch.bool:
        check(lambda a, b: [a & 5, a | 5, 5 ^ a], a, b)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8], ids=str)
def test_shifts_and_divisors(dtype: torch.dtype) -> None:
    a, b = data(3, 4, dtype=dtype), data(4, dtype=dtype)
    count = b.abs() % 9
    check(lambda a, n: [a << n, a >> n, a << 2, a >> 1, 3 << n], a, count)
    if dtype is not torch.uint8:
        far = torch.tensor([dtype.itemsize * 8, 100, 3], dtype=dtype)
        check(lambda a, n: [a >> n], a[:, :3], far)
    check(lambda a, b: [torch.gcd(a, b), torch.lcm(a, b)], a, b)


def test_in_place_and_out() -> None:
    def run(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        results = [x.clone() for _ in range(8)]
        results[0].add_(y, alpha=2)
        results[1].mul_(0.5).sub_(1)
        results[2].clamp_(-0.5, 0.5)
        results[3].masked_fill_(y > 0, -1)
        results[4].lerp_(y, 0.25)
        results[5].addcmul_(y, y, value=-0.5).relu_()
        results[6][1:].div_(y[1:])
        results[7].t().copy_(y.t()).pow_(2).eq_(1)
        torch.mul(x, y, out=results[0][:, :])
        bits = (x > 0) & (y > 0)
        bits |= y < 0
        bits ^= x < 0
        return [*results, bits]

    check(run, data(3, 4), data(3, 4), backward=False)


def test_complex_numbers() -> None:
    real, imag = data(3, 4), data(3, 4)
    check(lambda r, i: [torch.complex(r, i), torch.polar(r.abs(), i)], real, imag, backward=False)
    a, b = data(3, 4, dtype=torch.complex64), data(4, dtype=torch.complex64)
    check(lambda a, b: [a + b, a - b, a * b, a / b, a * 2.5, a + 1j, a == b], a, b, backward=False)
    check(lambda a: [a.nan_to_num(), a.angle(), a.sgn(), a.abs()], a, backward=False)


def test_nan_to_num_replacements() -> None:
    x = torch.tensor(EXTREMES)
    check(lambda x: [x.nan_to_num(1.5, 2.5, -3.5), x.nan_to_num(posinf=7.0)], x)
    check(torch.nan_to_num, x.to(torch.bfloat16), backward=False)
    check(torch.nan_to_num, x.to(torch.float64))


def test_round_decimals() -> None:
    check(lambda x: [x.round(decimals=2), x.round(decimals=-1)], data(3, 4) * 100)


def test_special_of_two() -> None:
    q = torch.tensor([0.5, 3.0, -1.5, -2.0, 10.0])
    check(
        lambda q: [torch.special.zeta(3.0, q), torch.special.zeta(2.5, q.abs() + 1)],
        q,
        backward=False,
    )
    check(lambda q: torch.polygamma(3, q), torch.tensor([0.5, 3.0, -1.5, 10.0]), backward=False)
    # Terms of both signs that cancel, and poles.
    q = torch.tensor([-8.5, -8.4, -3.5, -3.0, 0.0, -0.0, -INF, 1e-3])
    for n in (2, 3, 4):
        check(lambda q, n=n: torch.polygamma(n, q) / 10**n, q, backward=False)
    poles = torch.tensor([-0.0, 0.0, -INF, -3.0, 2.0])
    for s in (-1.0, 0.0, 1.0, 3.0):
        check(lambda q, s=s: torch.special.zeta(s, q), poles, backward=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_zeta_of_large_exponents(dtype: torch.dtype) -> None:
    """The largest term alone, where the others are nothing beside it."""
    s = torch.tensor([50.0, 300.0, 1000.0, 1002.0, 1e4, 1e10, 1e20, INF], dtype=dtype)
    q = torch.tensor([0.5, 0.999, 1.0, 1e-20, -0.5, -1.5, -9999.5], dtype=dtype)
    check(torch.special.zeta, s[:, None], q, backward=False)
    q = torch.tensor([1.0, 1.0001, 1.5, 2.0, 9.0], dtype=dtype)
    check(torch.special.zeta, s[:-2, None], q, backward=False)


def test_zeta_far_below_zero() -> None:
    q = torch.tensor([-20000.5, -9999.25, -100.75, -0.001], dtype=torch.float64)
    for s in (2.0, 3.0, 10.0, 21.0):
        check(lambda q, s=s: torch.special.zeta(s, q), q, backward=False)


# Signed zeros and infinities, in both parts.
LIMITS = [
    complex(re, im)
    for re in (0.0, -0.0, 1.0, -1.0, 0.5, -2.0, 2.0)
    for im in (0.0, -0.0, 1.0, -3.0)
]
INFINITE = [complex(INF, 1), complex(-INF, 0.5), complex(1, INF), complex(INF, NAN)]


def assert_same_parts(function: Unary, x: torch.Tensor) -> None:
    """Asserts that both parts of a complex result are the CPU's."""
    actual = torch.view_as_real(function(x.to(compare.DEVICE)).cpu())
    expected = torch.view_as_real(function(x))
    torch.testing.assert_close(actual, expected, equal_nan=True, rtol=2e-5, atol=1e-37)


@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
@pytest.mark.parametrize("name", words("sqrt asin acos atan asinh acosh atanh"))
def test_sides_of_branch_cuts(name: str, dtype: torch.dtype) -> None:
    x = torch.tensor(LIMITS, dtype=dtype)
    assert_same_parts(getattr(torch, name), x)
    if name == "sqrt":
        assert_same_parts(lambda x: x**0.5, x)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.complex64], ids=str)
def test_magnitudes_are_cast(dtype: torch.dtype) -> None:
    x = data(3, 4, dtype=torch.complex64)
    check(
        lambda x: torch.abs(x, out=torch.empty(3, 4, dtype=dtype, device=x.device)),
        x,
        backward=False,
    )


def test_no_integer_takes_an_angle() -> None:
    for device in ("cpu", compare.DEVICE):
        x = torch.ones(3, dtype=torch.int64, device=device)
        with pytest.raises(RuntimeError, match="can't be cast to the desired output type Long"):
            torch.angle(x, out=torch.empty_like(x))
        assert torch.add(x, x, out=torch.empty_like(x)).tolist() == [2, 2, 2]


def test_whole_numbers_are_not_divided_by_zero() -> None:
    for device in ("cpu", compare.DEVICE):
        x = torch.ones(2, dtype=torch.int64, device=device)
        for function in (torch.remainder, torch.fmod):
            with pytest.raises(RuntimeError, match="ZeroDivisionError"):
                function(x, 0)
            assert function(x[:0], 0).shape == (0,)


@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
def test_complex_limits(dtype: torch.dtype) -> None:
    x = torch.tensor([*LIMITS, *INFINITE], dtype=dtype)
    for function in (torch.log, torch.log2, torch.log10):
        assert_same_parts(function, x)
    check(torch.abs, x, backward=False)


@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
def test_complex_powers_of_limits(dtype: torch.dtype) -> None:
    base = torch.tensor([0.0, 1.0, -2.0, 2j, INF, -INF, NAN, 1e38], dtype=dtype)
    exponent = torch.tensor([0.0, 1.0, 2.0, -1.0, 0.5, 1j, 1 + 1j, 3.0, INF], dtype=dtype)
    for run in (
        lambda b, e: b[:, None] ** e,
        lambda b, e: b**2.5,
        lambda b, e: 0.0**e,
        lambda b, e: 1.0**e,
        lambda b, e: torch.logspace(1, 2, 3, 0.0, dtype=e.dtype, device=e.device),
    ):
        actual = torch.view_as_real(run(base.to(compare.DEVICE), exponent.to(compare.DEVICE)).cpu())
        expected = torch.view_as_real(run(base, exponent))
        torch.testing.assert_close(actual, expected, equal_nan=True, rtol=1e-4, atol=1e-6)


BESSEL = words(
    "bessel_j0 bessel_j1 bessel_y0 bessel_y1 spherical_bessel_j0 modified_bessel_i0 "
    "modified_bessel_i1 modified_bessel_k0 modified_bessel_k1 scaled_modified_bessel_k0 "
    "scaled_modified_bessel_k1 i0e i1 i1e"
)


@pytest.mark.parametrize("name", BESSEL)
def test_bessel(name: str) -> None:
    x = torch.cat([torch.linspace(-30, 30, 401), torch.tensor([0.0, 1e-20, 8.0, 2.0, 500.0])])
    check(getattr(torch.special, name), x, backward=False)


POLYNOMIALS = words(
    "chebyshev_polynomial_t chebyshev_polynomial_u chebyshev_polynomial_v chebyshev_polynomial_w "
    "shifted_chebyshev_polynomial_t shifted_chebyshev_polynomial_u shifted_chebyshev_polynomial_v "
    "shifted_chebyshev_polynomial_w hermite_polynomial_h hermite_polynomial_he "
    "laguerre_polynomial_l legendre_polynomial_p"
)


@pytest.mark.parametrize("name", POLYNOMIALS)
def test_polynomial(name: str) -> None:
    function = getattr(torch.special, name)
    degrees = torch.tensor([-1, 0, 1, 2, 3, 7])
    check(function, torch.tensor([[-1.0], [-0.7], [0.2], [1.0], [1.4]]), degrees, backward=False)
    check(lambda x: [function(x, 4), function(0.3, degrees.to(x.device))], data(3), backward=False)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_frexp(dtype: torch.dtype) -> None:
    x = torch.tensor([0.0, 1.0, -0.75, 1024.0, 3e-5, -60000.0], dtype=dtype)
    check(lambda x: tuple(torch.frexp(x)), x, backward=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_incomplete_gamma(dtype: torch.dtype) -> None:
    a = torch.tensor([0.0, 0.1, 0.5, 1.0, 2.5, 10.0, 80.0, INF, -1.0], dtype=dtype)[:, None]
    x = torch.tensor([0.0, 0.1, 0.9, 1.0, 3.0, 9.0, 12.0, 75.0, 90.0, INF, -1.0], dtype=dtype)
    check(lambda a, x: [torch.igamma(a, x), torch.igammac(a, x)], a, x, backward=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_fake_quantize(dtype: torch.dtype) -> None:
    def run(x: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> list[torch.Tensor]:
        scales, one = scales.detach(), torch.ones(1, dtype=torch.uint8, device=x.device)
        return [
            torch.fake_quantize_per_tensor_affine(x, 0.1, 2, -8, 7),
            torch.fake_quantize_per_tensor_affine(x, scales[:1], zeros[:1], -8, 7),
            torch.fake_quantize_per_channel_affine(x, scales, zeros, 1, -8, 7),
            torch._fake_quantize_per_tensor_affine_cachemask_tensor_qparams(
                x, scales[:1], zeros[:1], one, -8, 7
            ).output,
        ]

    check(run, data(3, 4, dtype=dtype), torch.rand(4) + 0.1, torch.tensor([0, 1, -2, 3]).int())


ACTIVATIONS: dict[str, Unary] = {
    "gelu": functional.gelu,
    "gelu tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
    "mish": functional.mish,
    "elu": lambda x: [functional.elu(x), functional.elu(x, 0.7)],
    "celu": lambda x: functional.celu(x, 0.7),
    "selu": functional.selu,
    "relu": functional.relu,
    "relu6": functional.relu6,
    "leaky_relu": lambda x: [functional.leaky_relu(x), functional.leaky_relu(x, 0.3)],
    "hardtanh": lambda x: [functional.hardtanh(x), functional.hardtanh(x, -0.5, 0.7)],
    "hardsigmoid": lambda x: functional.hardsigmoid(x * 3),
    "hardswish": lambda x: functional.hardswish(x * 3),
    "softplus": lambda x: [functional.softplus(x), functional.softplus(x, 2, 0.5)],
    "softshrink": lambda x: functional.softshrink(x, 0.3),
    "hardshrink": lambda x: functional.hardshrink(x, 0.3),
    "threshold": lambda x: functional.threshold(x, 0.2, 0.7),
    "tanhshrink": functional.tanhshrink,
    "softsign": functional.softsign,
    "logsigmoid": functional.logsigmoid,
    "glu": lambda x: [functional.glu(x), functional.glu(x, -2)],
    "rrelu": lambda x: functional.rrelu(x, 0.1, 0.4),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation(name: str, dtype: torch.dtype) -> None:
    check(ACTIVATIONS[name], data(4, 6, dtype=dtype))
    if dtype is torch.float32:
        check(ACTIVATIONS[name], data(0, 4, 6))


@pytest.mark.parametrize("name", [n for n in ACTIVATIONS if n != "glu"])
def test_activation_extremes(name: str) -> None:
    if name == "gelu":
        pytest.skip("the CPU's gelu of infinity is NaN")
    check(ACTIVATIONS[name], torch.tensor(EXTREMES), backward=False)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_prelu(dtype: torch.dtype) -> None:
    check(functional.prelu, data(2, 3, 4, dtype=dtype), data(3, dtype=dtype))
    check(functional.prelu, data(2, 3, 4, dtype=dtype), data(1, dtype=dtype))


def test_second_derivatives() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        y = (torch.sigmoid(x) + torch.tanh(x) + functional.softplus(x) + x**3).sum()
        return torch.autograd.grad(y, x, create_graph=True)[0]

    check(run, data(3, 4))


def test_rrelu_training() -> None:
    x = data(50, 20).to(compare.DEVICE).requires_grad_()
    y = functional.rrelu(x, 0.2, 0.4, training=True)
    slope = (y / x).detach().cpu()
    negative = x.detach().cpu() < 0
    assert torch.all(slope[~negative] == 1)
    assert torch.all((slope[negative] > 0.199) & (slope[negative] < 0.401))
    assert slope[negative].std() > 0.03
    y.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad.cpu(), slope)
