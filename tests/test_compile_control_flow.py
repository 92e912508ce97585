"""Control flow in compiled graphs: branches and loops of one program."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from compare import assert_same, dispatch_stats
from torch._higher_order_ops import while_loop
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan

from torch_tpu import _C, PerformanceWarning, tpu
from torch_tpu.compiler import graph

F = torch.nn.functional


@pytest.fixture(autouse=True)
def one_program_each() -> Iterator[None]:
    """A graph that is cut fails the test, unless it expects the warning."""
    torch.compiler.reset()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "torch.compile", PerformanceWarning)
        yield


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """The programs of the graphs that the test compiles."""
    graphs = []

    class Noted(_C.CompiledGraph):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            graphs.append(self)

    class Module:
        CompiledGraph = Noted

    monkeypatch.setattr(graph, "_C", Module)
    return lambda: [text for noted in graphs for text in noted.texts()]


def compiled(function: Callable[..., Any], *args: torch.Tensor) -> Any:
    """What the function gives on the device, as one graph."""
    given = [a.detach().to("tpu").requires_grad_(a.requires_grad) for a in args]
    return torch.compile(function, fullgraph=True)(*given)


def check_gradients(function: Callable[..., Any], *args: torch.Tensor) -> None:
    """Compares the gradients of the sum of what the function gives with the CPU's."""
    given = [a.detach().to("tpu").requires_grad_(a.requires_grad) for a in args]
    out = torch.compile(function, fullgraph=True)(*given)
    expected = function(*args)
    assert_same(out, expected, rtol=1e-5, atol=1e-5)
    out.sum().backward()
    expected.sum().backward()
    for ours, theirs in zip(given, args, strict=True):
        if theirs.requires_grad:
            assert ours.grad is not None and theirs.grad is not None
            assert_same(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)
            theirs.grad = None


# --- cond ---------------------------------------------------------------------------------------


def branches(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.cond(
        x.sum() > 0, lambda x, w: (x @ w).sin(), lambda x, w: (x @ (w * w)).cos() * 2, (x, w)
    )


@pytest.mark.single_operators
@pytest.mark.usefixtures("no_fallback")
def test_one_program_has_both_branches(texts: Callable[[], list[str]]) -> None:
    function = torch.compile(branches, fullgraph=True)
    w = torch.randn(3, 3)
    function(torch.ones(3, 3, device="tpu"), w.to("tpu"))
    before = dispatch_stats()["compiles"]
    for sign in (1, -1):
        x = torch.rand(3, 3) * sign
        assert_same(function(x.to("tpu"), w.to("tpu")), branches(x, w), rtol=1e-5, atol=1e-6)
    assert dispatch_stats()["compiles"] == before
    (text,) = texts()
    assert text.count("stablehlo.if") == 1


@pytest.mark.parametrize("sign", [1, -1])
def test_gradients_of_branches(sign: int) -> None:
    x = (torch.rand(3, 3) * sign).requires_grad_()
    check_gradients(branches, x, torch.randn(3, 3, requires_grad=True))


def test_branches_inside_branches_with_several_results() -> None:
    constant = torch.tensor([1.0, 2.0, 3.0])

    def inner(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.t().contiguous(), (x * 2).long()

    def other(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x + constant.to(x.device), torch.arange(9, device=x.device).view(3, 3)

    def outer(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.cond(x[0, 0] > 0, inner, other, (x,))

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.cond(x.sum() > 0, outer, other, (x,))

    for corner, total in ((1, 1), (-1, 1), (-1, -1)):
        x = torch.full((3, 3), 2.0 * total)
        x[0, 0] = corner
        with torch.no_grad():
            for ours, theirs in zip(compiled(function, x), function(x), strict=True):
                assert_same(ours, theirs)


def test_branches_draw_the_eager_random_numbers() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        before = torch.rand_like(x)
        y = torch.cond(x.sum() > 0, lambda x: F.dropout(x), lambda x: F.dropout(x * 2), (x,))
        return before + y, torch.rand_like(x)

    for sign in (1.0, -1.0):
        x = torch.full((6,), sign, device="tpu")
        torch.manual_seed(3)
        ours = torch.compile(function, fullgraph=True)(x)
        torch.manual_seed(3)
        for a, b in zip(ours, function(x), strict=True):
            torch.testing.assert_close(a, b)


def test_a_branch_that_writes_runs_by_itself() -> None:
    def write(x: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
        buffer.add_(x)
        return x + 1

    def function(x: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, write, lambda x, buffer: x - 1, (x, buffer)) * 2

    buffer = torch.zeros(2, device="tpu")
    with torch.no_grad(), pytest.warns(PerformanceWarning, match="cond"):
        out = torch.compile(function, fullgraph=True)(torch.ones(2, device="tpu"), buffer)
    assert_same(out, torch.full((2,), 4.0))
    assert_same(buffer, torch.ones(2))


# --- while_loop ---------------------------------------------------------------------------------


def collatz(n: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    steps = torch.zeros((), dtype=torch.int64, device=n.device)

    def step(steps: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return steps + 1, torch.where(n % 2 == 0, n // 2, 3 * n + 1)

    return while_loop(lambda steps, n: n != 1, step, (steps, n))


@pytest.mark.usefixtures("no_fallback")
def test_a_loop_runs_as_often_as_the_values_say(texts: Callable[[], list[str]]) -> None:
    function = torch.compile(collatz, fullgraph=True)
    for start, steps in ((6, 8), (27, 111), (1, 0)):
        count, n = function(torch.tensor(start, device="tpu"))
        assert (count.item(), n.item()) == (steps, 1)
    (text,) = texts()
    assert text.count("stablehlo.while") == 1


def test_a_loop_in_a_loop_over_values_of_outside() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        def inner(i: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            def body(left: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
                return left - 1, (x @ w).tanh()

            return while_loop(lambda left, x: left > 0, body, (i + 0, x))[1]

        zero = torch.zeros((), dtype=torch.int64, device=x.device)
        return while_loop(
            lambda i, x: (i < 3) & (x.sum() < 100), lambda i, x: (i + 1, inner(i, x) + 1), (zero, x)
        )[1]

    x, w = torch.randn(2, 3), torch.randn(3, 3)
    expected = x
    for i in range(3):
        for _ in range(i):
            expected = (expected @ w).tanh()
        expected = expected + 1
    assert_same(compiled(function, x, w), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", list(tpu.EagerMode))
def test_a_loop_draws_the_eager_random_numbers(mode: tpu.EagerMode) -> None:
    """In the loop, behind it in the program and behind the program, however often it goes round."""

    def function(x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, ...]:
        zero = torch.zeros((), dtype=torch.int64, device=x.device)
        body = lambda i, x: (i + 1, x + torch.rand_like(x))  # noqa: E731 - as users write it
        before = torch.rand(3, device=x.device)
        first = while_loop(lambda i, x: i < n, body, (zero, x))[1]
        between = torch.rand(2, device=x.device)
        second = while_loop(lambda i, x: i < n, body, (zero, first))[1]
        return before, first, between, second, torch.randn(2, device=x.device)

    def eager(x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, ...]:
        before, first = torch.rand(3, device=x.device), x
        for _ in range(int(n)):
            first = first + torch.rand_like(x)
        between, second = torch.rand(2, device=x.device), first
        for _ in range(int(n)):
            second = second + torch.rand_like(x)
        return before, first, between, second, torch.randn(2, device=x.device)

    one = torch.compile(function, fullgraph=True)
    x = torch.zeros(7, device="tpu")
    with tpu.set_eager_mode(mode):
        for count in (3, 0, 5):
            n = torch.tensor(count, device="tpu")
            torch.manual_seed(count)
            expected = eager(x, n), torch.rand(4, device="tpu")
            torch.manual_seed(count)
            given = one(x, n), torch.rand(4, device="tpu")
            torch.testing.assert_close(given, expected)


def test_a_loop_in_a_loop_that_draws_random_numbers_runs_by_itself() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        zero = torch.zeros((), dtype=torch.int64, device=x.device)

        def inner(i: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return i + 1, x + torch.rand_like(x)

        def outer(i: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return i + 1, while_loop(lambda j, x: j < 2, inner, (i * 0, x))[1]

        return while_loop(lambda i, x: i < 2, outer, (zero, x))[1]

    x = torch.zeros(3, device="tpu")
    torch.manual_seed(1)
    with pytest.warns(PerformanceWarning, match="random numbers are drawn in a loop"):
        out = torch.compile(function, fullgraph=True)(x)
    torch.manual_seed(1)
    for _ in range(4):
        x = x + torch.rand_like(x)
    torch.testing.assert_close(out, x)


def test_gradients_of_a_loop_need_the_number_of_its_steps() -> None:
    """PyTorch stacks what every step leaves behind: only the host can tell how much that is."""

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        zero = torch.zeros((), dtype=torch.int64, device=x.device)
        return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, (x @ w).sin()), (zero, x))[1]

    x, w = torch.randn(4, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)
    on_device = [t.detach().to("tpu").requires_grad_() for t in (x, w)]
    with pytest.warns(PerformanceWarning, match="while_loop"):
        torch.compile(function, fullgraph=True)(*on_device).sum().backward()
    y = x
    for _ in range(3):
        y = (y @ w).sin()
    y.sum().backward()
    for ours, theirs in zip(on_device, (x, w), strict=True):
        assert ours.grad is not None and theirs.grad is not None
        assert_same(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)


# --- scan, map, associative_scan ----------------------------------------------------------------


def recurrence(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    def step(state: torch.Tensor, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (state @ w).tanh() + row, (state * row).sin()

    last, rows = scan(step, torch.zeros(2, 3, device=x.device), x)
    return last + (rows * rows).sum(0)


@pytest.mark.usefixtures("no_fallback")
def test_a_scan_is_a_loop(texts: Callable[[], list[str]]) -> None:
    x, w = torch.randn(7, 2, 3), torch.randn(3, 3)
    assert_same(compiled(recurrence, x, w), recurrence(x, w), rtol=1e-4, atol=1e-5)
    (text,) = texts()
    assert text.count("stablehlo.while") == 1
    assert text.count("stablehlo.tanh") == 1


def test_gradients_of_a_scan(texts: Callable[[], list[str]]) -> None:
    x = torch.randn(5, 2, 3, requires_grad=True)
    check_gradients(recurrence, x, torch.randn(3, 3, requires_grad=True))
    assert all("stablehlo.while" in text for text in texts())


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dim", [0, 1])
def test_scans_of_several_tensors(reverse: bool, dim: int) -> None:
    def step(state: Any, row: Any) -> Any:
        count, total = state
        a, b = row
        return (count + 1, total + a.float()), (total * b, a.clone())

    def function(a: torch.Tensor, b: torch.Tensor) -> Any:
        init = (
            torch.zeros((), dtype=torch.int64, device=a.device),
            torch.zeros(4, device=a.device),
        )
        return scan(step, init, (a, b), dim=dim, reverse=reverse)

    a, b = torch.randint(9, (4, 4), dtype=torch.int32), torch.randn(4, 4).t()
    (count, total), (products, copies) = compiled(function, a, b)
    (count_, total_), (products_, copies_) = function(a, b)
    assert_same(count, count_)
    assert_same(total, total_)
    torch.testing.assert_close(products.cpu(), products_)
    torch.testing.assert_close(copies.cpu(), copies_)


def test_a_scan_draws_the_eager_random_numbers() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        def step(state: torch.Tensor, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return state + torch.rand_like(row), F.dropout(row)

        last, rows = scan(step, torch.zeros_like(x[0]), x)
        return last + torch.rand_like(last), rows

    x = torch.ones(4, 3, device="tpu")
    torch.manual_seed(1)
    last, rows = torch.compile(function, fullgraph=True)(x)
    torch.manual_seed(1)
    expected, masks = torch.zeros(3, device="tpu"), []
    for i in range(4):
        expected = expected + torch.rand_like(x[i])
        masks.append(F.dropout(x[i]))
    torch.testing.assert_close(last, expected + torch.rand_like(expected))
    torch.testing.assert_close(rows, torch.stack(masks))


def mapped(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    def row(x: torch.Tensor, *others: Any) -> torch.Tensor:
        return (x @ w).sin().sum(0)

    return map_rows(row, x)


@pytest.mark.usefixtures("no_fallback")
def test_a_map_is_a_loop(texts: Callable[[], list[str]]) -> None:
    x = torch.randn(6, 2, 3, requires_grad=True)
    check_gradients(mapped, x, torch.randn(3, 4, requires_grad=True))
    assert all(text.count("stablehlo.while") == 1 for text in texts())


def test_a_map_of_a_branch() -> None:
    def row(x: torch.Tensor, *others: Any) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: -x, (x,))

    x = torch.tensor([[1.0, 2.0], [-1.0, -2.0], [3.0, 0.0]])
    out = compiled(lambda x: map_rows(row, x), x)
    assert_same(out, torch.tensor([[2.0, 4.0], [1.0, 2.0], [6.0, 0.0]]))


@pytest.mark.usefixtures("no_fallback")
def test_associative_scans() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return associative_scan(lambda a, b: a * b, x, 0, combine_mode="generic")

    x = torch.randn(7, 3)
    assert_same(compiled(function, x), x.cumprod(0), rtol=1e-5, atol=1e-6)


def test_control_flow_in_every_mode() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return recurrence(x, w) + branches(x[0, :1], w).sum()

    x, w = torch.randn(3, 2, 3), torch.randn(3, 3)
    expected = function(x, w)
    for mode in tpu.EagerMode:
        with tpu.set_eager_mode(mode):
            assert_same(compiled(function, x, w), expected, rtol=1e-4, atol=1e-5)
