"""Random numbers: distributions, reproducibility, bounds."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import compare
import pytest
import torch

from torch_tpu.testing.operator_calls import outcome

pytestmark = pytest.mark.usefixtures("no_fallback")

COUNT = 50_000
# The Kolmogorov-Smirnov statistic times sqrt(n) exceeds this once in 50,000 samples.
KOLMOGOROV = 2.3
FLOATS = [torch.float32, torch.float64]
NARROW = [torch.bfloat16, torch.float16]


def distance(sample: torch.Tensor, cdf: Callable[[torch.Tensor], torch.Tensor]) -> float:
    """Kolmogorov and Smirnov's distance between a sample and a distribution, times sqrt(n)."""
    x = sample.detach().cpu().double().flatten().sort().values
    n = x.numel()
    expected = cdf(x)
    steps = torch.arange(n + 1, dtype=torch.float64) / n
    gap = torch.maximum((expected - steps[:-1]).abs(), (steps[1:] - expected).abs())
    return float(gap.max()) * n**0.5


def assert_frequencies(sample: torch.Tensor, probabilities: list[float]) -> None:
    """Asserts that integers occur as often as their probabilities say (6 standard deviations)."""
    values = sample.cpu().flatten().long()
    n = values.numel()
    counts = torch.bincount(values, minlength=len(probabilities))
    for value, p in enumerate(probabilities):
        deviation = (n * p * (1 - p)) ** 0.5
        assert abs(int(counts[value]) - n * p) <= 6 * deviation, f"{value}: {counts[value]} of {n}"


def empty(dtype: torch.dtype, device: torch.device, count: int = COUNT) -> torch.Tensor:
    return torch.empty(count, dtype=dtype, device=device)


def normal_cdf(mean: float, std: float) -> Callable[[torch.Tensor], torch.Tensor]:
    return torch.distributions.Normal(mean, std, validate_args=False).cdf


# --- What is no distribution --------------------------------------------------------------------

Fill = Callable[[torch.Tensor], torch.Tensor]
INF, NAN = math.inf, math.nan
# Numbers that a method draws by, and numbers that it refuses.
REFUSED: dict[str, tuple[tuple[float, ...], list[tuple[float, ...]]]] = {
    "uniform_": (
        (2, 3),
        [(3, 2), (NAN, 1), (0, NAN), (-INF, INF), (0, 1e309), (-1e308, 1e308)],
    ),
    "normal_": ((0, 2), [(0, -2), (0, NAN)]),
    "log_normal_": ((0, 2), [(0, -2), (0, NAN)]),
    "cauchy_": ((0, 2), [(0, -2), (0, NAN)]),
    "exponential_": ((2,), [(-2,), (NAN,)]),
    "geometric_": ((0.3,), [(-0.3,), (0,), (1,), (1.5,), (NAN,)]),
    "bernoulli_": ((0.3,), [(-0.3,), (1.5,), (NAN,)]),
}
# The same as functions.
REFUSED_FUNCTIONS: dict[str, Fill] = {
    "exponential": lambda x: torch.ops.aten.exponential(x, -2.0),
    "uniform": lambda x: torch.ops.aten.uniform(x, 3.0, 2.0),
    "normal": lambda x: torch.ops.aten.normal_functional(x, 0.0, -2.0),
    "normal of a tensor": lambda x: torch.normal(x, -2.0),
    "normal of numbers": lambda x: torch.normal(1.0, -2.0, (3,), device=x.device),
    "bernoulli": lambda x: torch.ops.aten.bernoulli.p(x, 1.5),
    "native_dropout": lambda x: torch.native_dropout(x, 1.5, True)[0],
}


def assert_refused_alike(fill: Fill, x: torch.Tensor) -> None:
    """Asserts that the device refuses to fill a tensor like the CPU's `x`, in the CPU's words."""
    refused = outcome(lambda: fill(x))
    assert isinstance(refused, Exception)
    with pytest.raises(type(refused), match=re.escape(str(refused))):
        fill(x.to(compare.DEVICE))


@pytest.mark.parametrize("name", REFUSED)
def test_numbers_without_a_distribution(name: str) -> None:
    """Also when the program for other numbers is there."""
    right, wrong = REFUSED[name]
    x = torch.ones(3)
    getattr(x.to(compare.DEVICE), name)(*right)
    for numbers in wrong:
        assert_refused_alike(lambda x, numbers=numbers: getattr(x, name)(*numbers), x)  # type: ignore[misc]


@pytest.mark.parametrize("name", REFUSED_FUNCTIONS)
def test_functions_without_a_distribution(name: str) -> None:
    assert_refused_alike(REFUSED_FUNCTIONS[name], torch.ones(3))


def test_dropout_that_draws_nothing(device: torch.device) -> None:
    x = torch.ones(3, device=device)
    torch.testing.assert_close(torch.native_dropout(x, 1.5, False)[0], x)


@pytest.mark.parametrize(
    ("dtype", "limit"),
    [
        (torch.float16, 65504.0),
        (torch.bfloat16, torch.finfo(torch.bfloat16).max),
        (torch.float32, torch.finfo(torch.float32).max),
        (torch.complex64, torch.finfo(torch.float32).max),
        (torch.float64, torch.finfo(torch.float64).max),
    ],
    ids=str,
)
def test_bounds_that_a_dtype_holds(dtype: torch.dtype, limit: float) -> None:
    x = torch.zeros(3, dtype=dtype)
    for bounds in [(-limit / 2, limit / 2), (0, limit), (-limit, -limit / 2)]:
        drawn = x.to(compare.DEVICE).uniform_(*bounds)
        parts = torch.view_as_real(drawn) if dtype.is_complex else drawn
        assert (parts >= bounds[0]).all() and (parts <= bounds[1]).all()
    assert_refused_alike(lambda x: x.uniform_(-0.6 * limit, 0.6 * limit), x)
    if dtype != torch.float64:
        assert_refused_alike(lambda x: x.uniform_(0, 1.1 * limit), x)
        assert_refused_alike(lambda x: x.uniform_(-1.1 * limit, 0), x)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.bool, torch.float16], ids=str)
def test_integers_that_a_dtype_does_not_hold(dtype: torch.dtype) -> None:
    x = torch.zeros(3, dtype=dtype)
    wrong: list[Fill] = [
        lambda x: x.random_(0, 10**6),
        lambda x: x.random_(-(10**6), 1),
        lambda x: x.random_(10**6),
        lambda x: torch.randint(10**6, (3,), dtype=dtype, device=x.device),
        lambda x: torch.randint_like(x, 0, 10**6),
    ]
    if dtype != torch.bool:
        wrong += [lambda x: torch.randperm(3000, dtype=dtype, device=x.device)]
    for fill in wrong:
        assert_refused_alike(fill, x)


@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64], ids=str)
def test_dtypes_without_a_distribution(dtype: torch.dtype) -> None:
    x = torch.ones(3, dtype=dtype)
    draws: list[Fill] = [
        lambda x: torch.poisson(x),
        lambda x: torch.binomial(x, x),
        lambda x: torch._standard_gamma(x),
        lambda x: torch._sample_dirichlet(x),
        lambda x: torch.normal(1.0, x),
    ]
    if dtype.is_complex:
        draws += [lambda x: x.bernoulli_(0.5)]
    else:
        draws += [lambda x: torch.native_dropout(x, 0.5, True)[0]]
    for fill in draws:
        assert_refused_alike(fill, x)


@pytest.mark.parametrize("dtype", [torch.bool, torch.complex64], ids=str)
def test_permutations_are_numbers(dtype: torch.dtype, device: torch.device) -> None:
    with pytest.raises(NotImplementedError, match="randperm"):
        torch.randperm(3, dtype=dtype, device=device)


# --- Continuous distributions -------------------------------------------------------------------

CONTINUOUS: dict[
    str,
    tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[torch.Tensor], torch.Tensor]],
] = {
    "uniform": (lambda x: x.uniform_(), lambda x: x.clamp(0, 1)),
    "uniform from to": (lambda x: x.uniform_(-3, 5), lambda x: ((x + 3) / 8).clamp(0, 1)),
    "normal": (lambda x: x.normal_(), normal_cdf(0, 1)),
    "normal mean std": (lambda x: x.normal_(2, 3), normal_cdf(2, 3)),
    "exponential": (lambda x: x.exponential_(), lambda x: 1 - torch.exp(-x)),
    "exponential rate": (lambda x: x.exponential_(2.5), lambda x: 1 - torch.exp(-2.5 * x)),
    "cauchy": (lambda x: x.cauchy_(1, 2), lambda x: torch.atan((x - 1) / 2) / torch.pi + 0.5),
    "log_normal": (lambda x: x.log_normal_(0.5, 0.25), lambda x: normal_cdf(0.5, 0.25)(x.log())),
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", CONTINUOUS)
def test_continuous(name: str, dtype: torch.dtype, device: torch.device) -> None:
    fill, cdf = CONTINUOUS[name]
    assert distance(fill(empty(dtype, device)), cdf) < KOLMOGOROV


@pytest.mark.parametrize("dtype", NARROW)
def test_narrow_types(dtype: torch.dtype, device: torch.device) -> None:
    unit = empty(dtype, device).uniform_().float()
    assert unit.min() >= 0 and unit.max() < 1
    assert abs(unit.mean().item() - 0.5) < 0.01
    wide = empty(dtype, device).uniform_(-3, 5).float()
    assert wide.min() >= -3 and wide.max() < 5
    normal = empty(dtype, device).normal_().float()
    assert abs(normal.mean().item()) < 0.03 and abs(normal.std().item() - 1) < 0.03


def test_tails_of_the_normal_distribution(device: torch.device) -> None:
    x = torch.randn(4_000_000, device=device).abs()
    # 10.8 of 4 million are expected beyond 4.7, 253 beyond 4.
    assert 190 < (x > 4).sum().item() < 320
    assert x.max() > 4.7
    assert abs((x < 0.01).float().mean().item() - 0.00798) < 0.0004


def test_exponential_is_positive(device: torch.device) -> None:
    x = torch.empty(4_000_000, device=device).exponential_()
    assert x.min() > 0
    assert x.min() < 1e-5
    assert 12 < x.max() < 24


def test_complex_uniform(device: torch.device) -> None:
    unit = torch.rand(COUNT, dtype=torch.complex64, device=device).cpu()
    x = torch.empty(COUNT, dtype=torch.complex64, device=device).uniform_(-3, 5).cpu()
    for part in (unit.real, unit.imag, (x.real + 3) / 8, (x.imag + 3) / 8):
        assert part.min() >= 0 and part.max() < 1
        assert distance(part, lambda p: p) < KOLMOGOROV
    assert abs(((x.real - 1) * (x.imag - 1)).mean().item()) < 0.5


def test_complex_normal(device: torch.device) -> None:
    x = torch.randn(COUNT, dtype=torch.complex64, device=device).cpu()
    assert abs(x.abs().square().mean().item() - 1) < 0.03
    assert distance(x.real, normal_cdf(0, 0.5**0.5)) < KOLMOGOROV
    assert distance(x.imag, normal_cdf(0, 0.5**0.5)) < KOLMOGOROV


def test_normal_of_tensors(device: torch.device) -> None:
    mean = torch.tensor([[-5.0], [5.0]], device=device).expand(2, COUNT)
    std = torch.tensor(0.5, device=device).expand(COUNT)
    x = torch.normal(mean, std)
    assert x.shape == (2, COUNT)
    assert distance(x[0], normal_cdf(-5, 0.5)) < KOLMOGOROV
    assert distance(torch.normal(mean, 2.0)[1], normal_cdf(5, 2)) < KOLMOGOROV
    assert distance(torch.normal(1.0, std), normal_cdf(1, 0.5)) < KOLMOGOROV
    assert distance(torch.normal(1.0, 2.0, (COUNT,), device=device), normal_cdf(1, 2)) < KOLMOGOROV


@pytest.mark.parametrize("shape", [0.3, 1.0, 7.5])
def test_gamma(shape: float, device: torch.device) -> None:
    x = torch._standard_gamma(torch.full((COUNT,), shape, device=device))
    assert x.dtype == torch.float32
    cdf = torch.distributions.Gamma(shape, 1.0, validate_args=False).cdf
    assert distance(x, lambda v: cdf(v.double())) < KOLMOGOROV


def test_dirichlet(device: torch.device) -> None:
    x = torch._sample_dirichlet(torch.tensor([0.5, 1.0, 2.0], device=device).repeat(COUNT, 1))
    torch.testing.assert_close(x.sum(1), torch.ones(COUNT, device=device))
    expected = torch.tensor([0.5, 1.0, 2.0]) / 3.5
    torch.testing.assert_close(x.mean(0).cpu(), expected, atol=0.01, rtol=0)


# --- Discrete distributions ---------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_bernoulli(dtype: torch.dtype, device: torch.device) -> None:
    x = empty(dtype, device).bernoulli_(0.3)
    assert x.dtype == dtype
    assert_frequencies(x, [0.7, 0.3])
    p = torch.tensor([0.0, 1.0, 0.5], device=device).repeat(COUNT, 1)
    y = torch.empty(COUNT, 3, dtype=dtype, device=device).bernoulli_(p)
    assert not y[:, 0].any() and y[:, 1].all()
    assert_frequencies(y[:, 2], [0.5, 0.5])


def test_bernoulli_of_a_tensor(device: torch.device) -> None:
    assert_frequencies(torch.bernoulli(torch.full((COUNT,), 0.8, device=device)), [0.2, 0.8])
    assert_frequencies(torch.bernoulli(empty(torch.float32, device), 0.25), [0.75, 0.25])
    places = torch.empty(0, dtype=torch.int64, device=device)
    torch.bernoulli(torch.tensor([0.0, 1.0], device=device), out=places)
    assert places.tolist() == [0, 1]


def test_geometric(device: torch.device) -> None:
    for dtype in (torch.float32, torch.int64):
        x = empty(dtype, device).geometric_(0.3)
        assert_frequencies(x, [0.0, 0.3, 0.21, 0.147])


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [
        (torch.int64, 0, 10),
        (torch.int64, -5, 70_000),
        (torch.int64, -(2**40), 2**62),
        (torch.int64, 7, 8),
        (torch.int32, 0, 2**31 - 1),
        (torch.int32, -(2**20), 2**20),
        (torch.uint8, 3, 200),
        (torch.int8, -128, 127),
        (torch.float32, 0, 7),
    ],
)
def test_integers_in_bounds(dtype: torch.dtype, low: int, high: int, device: torch.device) -> None:
    x = empty(dtype, device).random_(low, high).cpu()
    assert x.min() >= low and x.max() < high
    span = high - low
    middle = ((x.double() - low) / span).mean().item()
    assert abs(middle - (span - 1) / span / 2) < 0.01
    if span <= 16:
        assert_frequencies(x - low, [1 / span] * span)


@pytest.mark.parametrize(
    ("dtype", "largest"),
    [
        (torch.int64, 2**63 - 1),
        (torch.int32, 2**31 - 1),
        (torch.int16, 2**15 - 1),
        (torch.int8, 127),
        (torch.uint8, 255),
        (torch.bool, 1),
        (torch.float32, 2**24),
        (torch.float64, 2**53),
        (torch.bfloat16, 2**8),
    ],
)
def test_integers_without_bounds(dtype: torch.dtype, largest: int, device: torch.device) -> None:
    x = empty(dtype, device).random_().cpu().double()
    assert x.min() >= 0 and x.max() <= largest
    assert abs(x.mean().item() / largest - 0.5) < 0.01


def test_integers_of_all_64_bits(device: torch.device) -> None:
    x = empty(torch.int64, device).random_(-(2**63), None).cpu()
    assert abs((x < 0).double().mean().item() - 0.5) < 0.02
    for bit in range(64):
        assert abs(((x >> bit) & 1).double().mean().item() - 0.5) < 0.02


def test_randint(device: torch.device) -> None:
    x = torch.randint(3, 6, (COUNT,), device=device)
    assert x.dtype == torch.int64
    assert_frequencies(x - 3, [1 / 3] * 3)
    like = torch.randint_like(torch.zeros(COUNT, device=device), 4)
    assert like.dtype == torch.float32
    assert_frequencies(like, [0.25] * 4)
    with pytest.raises(RuntimeError, match="from"):
        torch.empty(3, device=device).random_(5, 5)


@pytest.mark.parametrize("n", [0, 1, 2, 1000, 5000])
def test_randperm(n: int, device: torch.device) -> None:
    x = torch.randperm(n, device=device)
    assert x.dtype == torch.int64
    assert x.cpu().sort().values.tolist() == list(range(n))
    if n >= 1000:
        assert abs((x.cpu() > torch.arange(n)).float().mean().item() - 0.5) < 0.1


def test_multinomial(device: torch.device) -> None:
    weights = torch.tensor([1.0, 0.0, 4.0, 2.0, 0.0, 3.0, 0.0], device=device)
    p = [0.1, 0.0, 0.4, 0.2, 0.0, 0.3, 0.0]
    rows = weights.repeat(COUNT, 1)
    one = torch.multinomial(rows, 1)
    assert one.shape == (COUNT, 1) and one.dtype == torch.int64
    assert_frequencies(one, p)
    assert_frequencies(torch.multinomial(rows, 1, replacement=True), p)
    assert_frequencies(torch.multinomial(weights, COUNT, replacement=True), p)
    several = torch.multinomial(rows, 3).cpu()
    assert_frequencies(several[:, 0], p)
    assert (several.sort(1).values.diff(dim=1) > 0).all()
    with pytest.raises(RuntimeError, match="without replacement"):
        torch.multinomial(weights, 8)


@pytest.mark.parametrize("rate", [0.0, 0.5, 9.0, 40.0, 1e6])
def test_poisson(rate: float, device: torch.device) -> None:
    x = torch.poisson(torch.full((COUNT,), rate, device=device)).cpu()
    assert x.dtype == torch.float32
    error = 6 * (rate / COUNT) ** 0.5
    assert abs(x.double().mean().item() - rate) <= error
    assert abs(x.double().var().item() - rate) <= 6 * rate * (2 / COUNT) ** 0.5 + error
    if 0 < rate < 100:
        counts = torch.arange(int(rate) + 3, dtype=torch.float64)
        p = torch.distributions.Poisson(torch.tensor(rate, dtype=torch.float64)).log_prob(counts)
        assert_frequencies(x, p.exp().tolist())


@pytest.mark.parametrize(
    ("n", "p"), [(10, 0.3), (10, 0.9), (100, 0.5), (100, 0.05), (5, 0.0), (5, 1.0), (0, 0.5)]
)
def test_binomial(n: int, p: float, device: torch.device) -> None:
    x = torch.binomial(
        torch.full((COUNT,), float(n), device=device), torch.full((COUNT,), p, device=device)
    )
    assert x.min() >= 0 and x.max() <= n
    if n == 0 or p in (0.0, 1.0):
        assert (x == n * p).all()
        return
    total = torch.tensor(float(n), dtype=torch.float64)
    exact = torch.distributions.Binomial(total, torch.tensor(p, dtype=torch.float64))
    probabilities = exact.log_prob(torch.arange(n + 1, dtype=torch.float64)).exp()
    assert_frequencies(x, probabilities.tolist())


# --- Dropout ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout(dtype: torch.dtype, device: torch.device) -> None:
    x = torch.randn(COUNT, dtype=dtype, device=device, requires_grad=True)
    y = torch.nn.functional.dropout(x, 0.2)
    kept = (y != 0).cpu()
    assert_frequencies(kept, [0.2, 0.8])
    expected = torch.where(kept, x.detach().cpu().float() / 0.8, 0.0).to(dtype)
    torch.testing.assert_close(y.detach().cpu(), expected)
    y.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad.cpu(), torch.where(kept, 1.25, 0.0).to(dtype))


def test_native_dropout(device: torch.device) -> None:
    x = torch.randn(COUNT, device=device)
    out, mask = torch.native_dropout(x, 0.2, True)
    assert mask.dtype == torch.bool
    torch.testing.assert_close(out, x * mask / 0.8)
    out, mask = torch.native_dropout(x, 0.2, False)
    assert torch.equal(out, x) and mask.all()
    out, mask = torch.native_dropout(x, 1.0, True)
    assert not out.any() and not mask.any()


# --- The generator ------------------------------------------------------------------------------


def test_the_seed_decides(device: torch.device) -> None:
    torch.manual_seed(5)
    first = [torch.randn(100, device=device), torch.rand(7, device=device)]
    torch.manual_seed(5)
    again = [torch.randn(100, device=device), torch.rand(7, device=device)]
    for a, b in zip(first, again, strict=True):
        assert torch.equal(a, b)
    torch.manual_seed(6)
    assert not torch.equal(first[0], torch.randn(100, device=device))


def test_successive_draws_differ(device: torch.device) -> None:
    draws = torch.stack([torch.rand(64, device=device) for _ in range(20)]).cpu()
    assert draws.unique().numel() == draws.numel()


def test_empty_draws(device: torch.device) -> None:
    assert torch.randn(0, 3, device=device).shape == (0, 3)
    assert torch.rand(0, device=device).shape == (0,)
    assert torch.empty(0, device=device).bernoulli_(0.5).shape == (0,)
    assert torch.nn.functional.dropout(torch.empty(0, 2, device=device)).shape == (0, 2)
