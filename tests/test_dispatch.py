"""What the dispatcher does with a call: signatures, numbers, dtypes, devices, counters."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from compare import assert_same, dispatch_stats
from dtypes import PROMOTED


def stats(*keys: str) -> int:
    now = dispatch_stats()
    return sum(int(now[key]) for key in keys)


def programs_made() -> int:
    return stats("compiles", "loads")


# --- Numbers ------------------------------------------------------------------------------------

NUMBERS: dict[str, Callable[[torch.Tensor, Any], torch.Tensor]] = {
    "add": lambda x, n: x + n,
    "radd": lambda x, n: n + x,
    "sub": lambda x, n: x - n,
    "rsub": lambda x, n: n - x,
    "mul": lambda x, n: x * n,
    "div": lambda x, n: x / n,
    "rdiv": lambda x, n: n / x,
    "remainder": lambda x, n: x % n,
    "add alpha": lambda x, n: torch.add(x, x, alpha=n),
    "compare": lambda x, n: x < n,
    "clamp": lambda x, n: x.clamp(max=n),
    "fill": lambda x, n: torch.full_like(x, n),
    "masked_fill": lambda x, n: x.masked_fill(x > 0, n),
    "where": lambda x, n: torch.where(x > 0, x, n),
    "lerp": lambda x, n: torch.lerp(x, -x, n),
    "addcmul": lambda x, n: torch.addcmul(x, x, x, value=n),
    "pow": lambda x, n: x.abs() ** n,
}


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.single_operators
def test_a_changed_number_needs_no_new_program(
    name: str, device: torch.device, no_fallback: None
) -> None:
    x = torch.tensor([[0.5, -1.5, 2.0, 3.25]])
    y = x.to(device)
    numbers = [2.5, -3.75, 1e-3, 7.125, 0.3]
    NUMBERS[name](y, 4.5)
    before = programs_made()
    for number in numbers:
        assert_same(NUMBERS[name](y, number), NUMBERS[name](x, number))
    if name != "pow":  # its exponent chooses between multiplications and a power
        assert programs_made() == before


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("number", [0, 1, -1, 2, 0.0, 1.0, -1.0, True, 3])
def test_special_numbers(name: str, number: Any, device: torch.device) -> None:
    x = torch.tensor([[0.5, -1.5, 2.0, 3.25]])
    try:
        expected = NUMBERS[name](x, number)
    except RuntimeError:
        pytest.skip("PyTorch refuses bools here")
    assert_same(NUMBERS[name](x.to(device), number), expected)


@pytest.mark.parametrize("number", [3, -1, 0, 2.5, True, 1 + 2j, 2**40, float("inf"), float("nan")])
@pytest.mark.parametrize(
    "dtype",
    [
        torch.bool,
        torch.uint8,
        torch.int32,
        torch.int64,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.complex64,
    ],
    ids=str,
)
def test_numbers_and_dtypes(number: Any, dtype: torch.dtype, device: torch.device) -> None:
    x = torch.tensor([0, 1, 3]).to(dtype)
    for op in (torch.add, torch.mul, torch.eq):
        # Compilers take false * inf for 0, and an infinite complex number has many faces.
        infinite = not isinstance(number, complex) and not abs(number) < float("inf")
        if infinite and dtype in (torch.bool, torch.complex64) and op is not torch.eq:
            continue
        assert_same(op(x.to(device), number), op(x, number))


def test_large_integers_are_exact(device: torch.device) -> None:
    x = torch.tensor([2**53 + 1, -(2**62) - 1])
    for number in (2**53 + 3, -(2**53) - 1, 3):
        assert_same(x.to(device) + number, x + number, rtol=0, atol=0)
        assert_same(x.to(device) == number, x == number)
        assert_same(torch.full((2,), number, device=device), torch.full((2,), number))


@pytest.mark.single_operators
def test_lists_of_numbers(device: torch.device, no_fallback: None) -> None:
    tensors = [torch.randn(3), torch.randn(2, 2)]
    moved = [t.to(device) for t in tensors]
    torch._foreach_add(moved, [1.5, 2.5])
    before = programs_made()
    for numbers in ([3.5, -2.0], [0.0, 1.0], [7.25, 1e-3]):
        for got, want in zip(
            torch._foreach_add(moved, numbers), torch._foreach_add(tensors, numbers), strict=True
        ):
            assert_same(got, want)
    assert programs_made() == before


# --- 0-d tensors of the CPU ---------------------------------------------------------------------


@pytest.mark.single_operators
def test_host_scalars(device: torch.device, no_fallback: None) -> None:
    x = torch.tensor([1.0, 2.0, 3.0])
    y = x.to(device)
    y * torch.tensor(2.0)
    before = programs_made()
    for value in (0.5, 1.0, -3.0):
        assert_same(y * torch.tensor(value), x * torch.tensor(value))
        assert_same(torch.tensor(value) * y, torch.tensor(value) * x)
    assert programs_made() <= before + 1
    for scalar in (torch.tensor(3), torch.tensor(2.5, dtype=torch.float64), torch.tensor(True)):
        assert_same(y + scalar, x + scalar)
        assert_same(y.long() + scalar, x.long() + scalar)
        assert_same(torch.where(y > 1, y, scalar), torch.where(x > 1, x, scalar))
    y.mul_(torch.tensor(2.0)).masked_fill_(y > 4, torch.tensor(0.0))
    assert_same(y, torch.tensor([2.0, 4.0, 0.0]))


def test_tensors_on_two_kinds_of_devices(device: torch.device) -> None:
    x = torch.ones(3, device=device)
    for call in (
        lambda: x + torch.ones(3),
        lambda: torch.ones(3) + x,
        lambda: torch.ones(3).add_(x),
        lambda: x.add_(torch.ones(3)),
        lambda: torch.cat([x, torch.ones(3)]),
        lambda: torch.mm(x.view(1, 3), torch.ones(3, 1)),
        lambda: torch.nn.functional.linear(x, torch.ones(2, 3)),
        lambda: torch.where(x > 0, x, torch.ones(3)),
        lambda: x.index_select(0, torch.tensor([0])),
    ):
        with pytest.raises(RuntimeError, match=r"[Ee]xpected all tensors to be on the same device"):
            call()


# --- Dtypes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", PROMOTED, ids=str)
def test_promotion(dtype: torch.dtype, device: torch.device) -> None:
    def operands(place: torch.device | str) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for other in PROMOTED:
            # Together they make complex32, which the device does not have.
            if {dtype, other} & {torch.float16} and (dtype.is_complex or other.is_complex):
                continue
            dims = (torch.tensor([1, 0, 1]).to(dtype), torch.tensor([1, 1, 0]).to(other))
            zero = (torch.tensor(1).to(dtype), torch.tensor(1).to(other))
            for a, b in itertools.product((dims[0], zero[0]), (dims[1], zero[1])):
                yield a.to(place), b.to(place)

    for (a, b), (c, d) in zip(operands(device), operands("cpu"), strict=True):
        assert_same(a + b, c + d, what=f"{c.dtype}{list(c.shape)} + {d.dtype}{list(d.shape)}")


@pytest.fixture
def double_default() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def default_dtype_calls(device: torch.device) -> None:
    x = torch.tensor([1, 2, 3])
    y = x.to(device)
    for call in (
        lambda t: t / 7,
        lambda t: t * 0.1,
        lambda t: t.sqrt(),
        lambda t: torch.true_divide(t, t + 4),
        lambda t: torch.full((2,), 0.1, device=t.device),
        lambda t: torch.arange(0, 1, 0.1, device=t.device),
        lambda t: torch.linspace(0, 1, 4, device=t.device),
        lambda t: t.sin() + 0.1,
        lambda t: torch.where(t > 1, 0.1, 0.7),
        lambda t: torch.ones(2, device=t.device) / 3,
        lambda t: torch.tensor([0.1], device=t.device) * t,
    ):
        assert_same(call(y), call(x))


def test_default_dtype(double_default: None, device: torch.device) -> None:
    default_dtype_calls(device)


def test_default_dtype_does_not_leak(device: torch.device) -> None:
    # The same calls, whose programs must not be those of the other default dtype.
    for dtype in (torch.float32, torch.float64, torch.float32):
        torch.set_default_dtype(dtype)
        try:
            default_dtype_calls(device)
        finally:
            torch.set_default_dtype(torch.float32)


# --- Signatures ---------------------------------------------------------------------------------


def test_same_shapes_need_one_program(device: torch.device) -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(x @ x.t()).sum(1)

    step(torch.randn(5, 7, device=device))
    before = programs_made()
    for _ in range(3):
        step(torch.randn(5, 7, device=device))
    assert programs_made() == before


def test_aliasing_is_part_of_the_signature(device: torch.device) -> None:
    # The same shapes, with one storage or two.
    for _ in range(2):
        for x in (torch.ones(3), torch.ones(3, device=device)):
            y = x.clone()
            x.add_(x).add_(y).mul_(x)
            torch.add(x, y, out=x)
            torch.sub(x, y, out=y)
            assert x.cpu().tolist() == [10.0] * 3
            assert y.cpu().tolist() == [9.0] * 3


def test_views_are_part_of_the_signature(device: torch.device) -> None:
    base = torch.arange(16.0).view(4, 4)
    moved = base.to(device)
    for view in (
        lambda x: x,
        lambda x: x.t(),
        lambda x: x[::2].repeat(2, 1),
        lambda x: x.flip(0),
        lambda x: x[1].expand(4, 4),
        lambda x: x.view(-1)[:4].view(4, 1).expand(4, 4),
    ):
        assert_same((view(moved) + 1).contiguous(), (view(base) + 1).contiguous())


def test_many_tensors(device: torch.device, no_fallback: None) -> None:
    tensors = [torch.full((2,), float(i)) for i in range(100)]
    moved = [t.to(device) for t in tensors]
    assert_same(torch.cat(moved), torch.cat(tensors))
    assert_same(torch.stack(moved + moved[:3]), torch.stack(tensors + tensors[:3]))
    torch._foreach_add_(moved, moved, alpha=2)
    for got, want in zip(moved, tensors, strict=True):
        assert_same(got, want * 3)


def test_one_tensor_many_times(device: torch.device) -> None:
    x = torch.randn(3)
    y = x.to(device)
    assert_same(torch.cat([y, y, y[1:]]), torch.cat([x, x, x[1:]]))
    assert_same(torch.addcmul(y, y, y), torch.addcmul(x, x, x))


def test_nothing_to_compute(device: torch.device, no_fallback: None) -> None:
    x = torch.empty(0, 3)
    y = x.to(device)
    for call in (
        lambda t: t + 1,
        lambda t: t.sum(0),
        lambda t: t.sum(),
        lambda t: t @ t.t(),
        lambda t: t.t() @ t,
        lambda t: torch.cat([t, t]),
        lambda t: t.softmax(1),
        lambda t: t.clone().add_(1),
        lambda t: t.mean(1),
    ):
        assert_same(call(y), call(x))


def test_undefined_and_absent_tensors(device: torch.device) -> None:
    x, w = torch.randn(2, 3), torch.randn(3)
    for weight, bias in itertools.product((None, w), (None, w)):
        expected = torch.nn.functional.layer_norm(x, (3,), weight, bias)
        actual = torch.nn.functional.layer_norm(
            x.to(device),
            (3,),
            None if weight is None else weight.to(device),
            None if bias is None else bias.to(device),
        )
        assert_same(actual, expected, rtol=1e-5, atol=1e-5)


def test_strings_and_lists_are_part_of_the_signature(device: torch.device) -> None:
    x = torch.randn(2, 3, 4)
    y = x.to(device)
    for dims in ((0,), (1,), (0, 1), (0, 2), (2, 0), (0, 1, 2)):
        assert_same(y.sum(dims), x.sum(dims))
        assert_same(y.amax(dims, keepdim=True), x.amax(dims, keepdim=True))
    for mode in (None, "trunc", "floor"):
        assert_same(torch.div(y, 0.3, rounding_mode=mode), torch.div(x, 0.3, rounding_mode=mode))
    for approximate in ("none", "tanh"):
        assert_same(
            torch.nn.functional.gelu(y, approximate=approximate),
            torch.nn.functional.gelu(x, approximate=approximate),
        )


def test_threads_compile_and_run_at_once(device: torch.device) -> None:
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for size in range(1, 12):
                x = torch.arange(float(size)).view(size, 1)
                y = (x.to(device) * 2 + seed).t()
                assert_same(y.contiguous(), (x * 2 + seed).t().contiguous())
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


# --- Counters -----------------------------------------------------------------------------------


@pytest.mark.single_operators
def test_counters(device: torch.device) -> None:
    x = torch.ones(3, 5, device=device)
    x * 1.25
    before = dispatch_stats()
    for step in range(4):
        x * (step + 2.5)
    after = dispatch_stats()
    assert after["ops"] - before["ops"] == 4
    assert after["programs"] - before["programs"] == 4
    assert after["cache_hits"] - before["cache_hits"] == 4
    assert after["compiles"] == before["compiles"]
    assert after["fallbacks"] == before["fallbacks"]


def test_views_run_nothing(device: torch.device) -> None:
    x = torch.ones(4, 6, device=device)
    before = stats("programs")
    x.t()[1:3].reshape(2, 4).unsqueeze(0).expand(3, 2, 4).view(torch.int32).diagonal()
    torch.empty(3, 4, device=device).t()
    x.detach().clone()
    assert stats("programs") == before
