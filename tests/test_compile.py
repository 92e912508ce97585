"""torch.compile on the device: graphs give what PyTorch gives eagerly on the CPU."""

from __future__ import annotations

import contextlib
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import subprocess_python
import torch
from compare import assert_same, dispatch_stats, named_tensors
from torch.utils.checkpoint import checkpoint

from torch_tpu import _C, PerformanceWarning, tpu
from torch_tpu.compiler.graph import compile_graph
from torch_tpu.tpu import EagerMode

F = torch.nn.functional
Function = Callable[..., Any]


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    """Lets no function be known from the test before."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def moved(value: Any, device: torch.device | str = "tpu") -> Any:
    """Copies of tensors, on the device, that share storages as they did, and other values."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().clone().to(device).requires_grad_(value.requires_grad)


def check(function: Function, *args: Any, rtol: float | None = None, **options: Any) -> None:
    """Compares results, gradients and what is written with the eager ones of the CPU."""
    compiled = torch.compile(function, fullgraph=True, **options)
    given = [moved(arg) for arg in args]
    expected = [moved(arg, "cpu") for arg in args]
    for _ in range(2):
        check_call(compiled, given, function, expected, rtol)


def check_call(
    compiled: Function, given: list[Any], function: Function, expected: list[Any], rtol: Any
) -> None:
    """Compares one call."""
    ours, theirs = compiled(*given), function(*expected)
    atol = None if rtol is None else rtol
    actual = dict(named_tensors(ours))
    wanted = dict(named_tensors(theirs))
    assert actual.keys() == wanted.keys()
    for name, value in wanted.items():
        assert_same(actual[name], value, rtol=rtol, atol=atol, what=name)
    if any(isinstance(arg, torch.Tensor) and arg.requires_grad for arg in given):
        for values in (actual, wanted):
            sum(v.float().sum() for v in values.values() if v.requires_grad).backward()  # type: ignore[union-attr]
    for i, (arg, other) in enumerate(zip(given, expected, strict=True)):
        if not isinstance(arg, torch.Tensor):
            continue
        assert_same(arg, other, rtol=rtol, atol=atol, what=f"argument {i}")
        if other.grad is not None:
            assert arg.grad is not None
            assert_same(arg.grad, other.grad, rtol=rtol, atol=atol, what=f"gradient {i}")


def programs_of(call: Callable[[], Any]) -> tuple[Any, int]:
    """What the call gives, and how many programs ran."""
    tpu.synchronize()
    before = dispatch_stats()["programs"]
    result = call()
    tpu.synchronize()
    return result, dispatch_stats()["programs"] - before


# --- Which compiler takes a graph ---------------------------------------------------------------


def test_graphs_go_to_the_compiler_of_their_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs of CPU tensors go to inductor, as without this package."""
    to_inductor = []

    def inductor(self: Any, graph: Any, inputs: Any, **kwargs: Any) -> Any:
        to_inductor.append(self.config)
        return graph.forward

    monkeypatch.setattr(torch._TorchCompileInductorWrapper, "__call__", inductor)

    @torch.compile(mode="max-autotune-no-cudagraphs")
    def function(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).sin()

    x = torch.randn(4)
    assert_same(function(x.to("tpu")), (x * 2).sin())
    assert not to_inductor
    assert torch.equal(function(x), (x * 2).sin())
    assert [config["max_autotune"] for config in to_inductor] == [True]


def test_what_is_made_on_the_device_counts_too() -> None:
    made = torch.compile(lambda: torch.arange(4, device="tpu") * 2, fullgraph=True)()
    assert_same(made, torch.arange(4) * 2)


def test_the_backend_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "tpu" in torch.compiler.list_backends(exclude_tags=())
    compiled = torch.compile(torch.sin, backend="tpu")
    assert_same(compiled(torch.ones(3, device="tpu")), torch.ones(3).sin())


def test_inductor_says_that_it_cannot() -> None:
    compiled = torch.compile(torch.sin, backend="inductor")
    with pytest.raises(Exception, match="'inductor' has no code generator for tpu tensors; use"):
        compiled(torch.ones(3, device="tpu"))


@pytest.mark.parametrize(
    "mode", ["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
)
@pytest.mark.parametrize("named", [False, True])
def test_modes_are_accepted(mode: str, named: bool) -> None:
    function = lambda x: x + 1  # noqa: E731 - as short as it gets
    compiled = (
        torch.compile(function, mode=mode, backend="tpu")
        if named
        else torch.compile(function, mode=mode)
    )
    assert_same(compiled(torch.ones(3, device="tpu")), torch.ones(3) + 1)


def test_unknown_arguments_and_options_are_refused() -> None:
    x = torch.ones(3, device="tpu")
    with pytest.raises(Exception, match="xla_no_such_flag"):
        torch.compile(torch.cos, backend="tpu", options={"xla_no_such_flag": True})(x)
    with pytest.raises(Exception, match="no_such_argument"):
        torch.compile(torch.tan, backend="tpu", no_such_argument=1)(x)  # type: ignore[call-overload]


# --- torch.compiler and Dynamo ------------------------------------------------------------------


def test_graphs_break() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        return y + 1 if y.sum() > 0 else y - 1

    compiled = torch.compile(function)
    for sign in (1, -1):
        x = torch.full((3,), float(sign))
        assert_same(compiled(x.to("tpu")), function(x))
    torch.compiler.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(function, fullgraph=True)(torch.ones(3, device="tpu"))


def test_torch_compiler() -> None:
    compiled = torch.compile(lambda x: x + (1 if torch.compiler.is_compiling() else 2))
    x = torch.zeros(3, device="tpu")
    assert_same(compiled(x), torch.ones(3))
    with torch.compiler.set_stance("force_eager"):
        assert_same(compiled(x), torch.full((3,), 2.0))
    with torch.compiler.set_stance("fail_on_recompile"):
        assert_same(compiled(x), torch.ones(3))
        with pytest.raises(RuntimeError, match="recompile"):
            compiled(x.double())

    @torch.compiler.disable
    def not_compiled(x: torch.Tensor) -> torch.Tensor:
        assert not torch.compiler.is_compiling()
        return x * 3

    assert_same(torch.compile(lambda x: not_compiled(x + 1))(x), torch.full((3,), 3.0))


def test_modules_compile_in_place() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x).relu()

    model = Model()
    x = torch.randn(4, 3)
    expected = model(x)
    expected.sum().backward()
    grad = model.linear.weight.grad
    assert grad is not None
    model.zero_grad()
    model.to("tpu").compile(fullgraph=True)
    out, count = programs_of(lambda: model(x.to("tpu")))
    assert count == 1
    out.sum().backward()
    assert_same(out, expected, rtol=1e-5, atol=1e-6)
    assert model.linear.weight.grad is not None
    assert_same(model.linear.weight.grad, grad, rtol=1e-5, atol=1e-6)


def test_what_dynamo_knows_of_the_device() -> None:
    from torch._dynamo.device_interface import get_interface_for_device

    interface = get_interface_for_device("tpu")
    assert interface.current_device() == tpu.current_device()
    assert interface.device_count() == tpu.device_count()
    assert interface.is_available()
    assert interface.is_dtype_supported(torch.float64)
    assert not interface.is_dtype_supported(torch.complex32)
    assert interface.get_device_properties("tpu") == tpu.get_device_properties()
    assert interface.exchange_device(0) == 0
    interface.synchronize()


def test_facts_of_the_device_are_constants_of_a_graph() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x + tpu.device_count() + tpu.current_device() + int(tpu.is_available())

    compiled = torch.compile(function, fullgraph=True)
    assert_same(compiled(torch.zeros(2, device="tpu")), torch.full((2,), 1.0 + tpu.device_count()))


def test_streams_break_graphs() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        side = tpu.Stream()
        with tpu.stream(side):
            y = x + 1
        event = tpu.Event()
        event.record(side)
        tpu.current_stream().wait_event(event)
        tpu.synchronize()
        return y * 2

    assert_same(torch.compile(function)(torch.zeros(2, device="tpu")), torch.full((2,), 2.0))


def test_exceptions_pass_through() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] == 3:
            raise ValueError("three rows")
        return x + 1

    compiled = torch.compile(function)
    with pytest.raises(ValueError, match="three rows"):
        compiled(torch.ones(3, device="tpu"))
    assert_same(compiled(torch.ones(4, device="tpu")), torch.ones(4) + 1)


# --- What goes in and comes out -----------------------------------------------------------------


def writes_and_views(x: torch.Tensor) -> Any:
    y = x[1:]
    y.mul_(2)
    return x.view(-1), y, x[0].sum()


def writes_to_two(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.add_(y)
    y.mul_(2)
    return x - y


def writes_only(x: torch.Tensor) -> None:
    x.add_(1)


def promised_strides(x: torch.Tensor) -> Any:
    made = torch.empty_strided((2, 3), (1, 2), device=x.device).fill_(2)
    nhwc = x.contiguous(memory_format=torch.channels_last)
    return nhwc * 2, x.transpose(1, 2), x.permute(3, 1, 0, 2) + 1, made


def dtype_views(x: torch.Tensor) -> Any:
    return torch.view_as_real(torch.view_as_complex(x) * 2), x.view(torch.int32)


def lazy_bits(x: torch.Tensor) -> Any:
    return x.conj(), (x * 2).conj(), x.imag, x.mT @ x.conj()


CALLS: dict[str, tuple[Function, Callable[[], list[Any]]]] = {
    "writes and views": (writes_and_views, lambda: [torch.randn(3, 2)]),
    "writes to two": (writes_to_two, lambda: [torch.randn(3), torch.randn(3)]),
    "no outputs": (writes_only, lambda: [torch.randn(3)]),
    "promised strides": (promised_strides, lambda: [torch.randn(2, 3, 4, 5)]),
    "dtype views": (dtype_views, lambda: [torch.randn(3, 2)]),
    "lazy bits": (lazy_bits, lambda: [torch.randn(3, 3, dtype=torch.complex64)]),
    "empty tensors": (
        lambda x: (x * 2, x.sum(), torch.empty(0, 2, device=x.device)),
        lambda: [torch.ones(0, 2)],
    ),
    "views of inputs": (
        lambda x: (x.t(), x[:, 1], x.expand(2, 3, 4)),
        lambda: [torch.randn(3, 4, requires_grad=True)],
    ),
    "int8 and float8": (
        lambda x: (x.to(torch.int8), x.to(torch.float8_e4m3fn).float()),
        lambda: [torch.randn(4)],
    ),
    "many outputs": (
        lambda x: (*torch.split(x, 2), x.max(0), {"a": x.sin()}),
        lambda: [torch.randn(6, requires_grad=True)],
    ),
}


@pytest.mark.usefixtures("no_fallback")
@pytest.mark.parametrize("name", CALLS)
def test_inputs_and_outputs(name: str) -> None:
    function, arguments = CALLS[name]
    check(function, *arguments(), rtol=1e-5)


def test_an_input_comes_back_as_itself() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x.add_(1)
        return x, x[1:]

    x = torch.zeros(3, device="tpu")
    same, rest = torch.compile(function, fullgraph=True)(x)
    assert same is x
    assert rest._base is x
    rest.mul_(5)
    assert_same(x, torch.tensor([1.0, 5.0, 5.0]))


def test_inputs_that_share_memory() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x + y

    for overlap in (lambda t: (t, t), lambda t: (t[:2], t[1:3]), lambda t: (t[:2], t[2:])):
        torch.compiler.reset()  # PyTorch takes the third call for the second again, on the CPU too
        compiled = torch.compile(function, fullgraph=True)
        ours, theirs = torch.arange(4.0, device="tpu"), torch.arange(4.0)
        assert_same(compiled(*overlap(ours)), function(*overlap(theirs)))
        assert_same(ours, theirs)


def test_values_that_are_no_tensors() -> None:
    def function(x: torch.Tensor, flag: bool, count: int, scale: float) -> Any:
        return (x * scale if flag else x + count), flag, count + 1, None, scale

    compiled = torch.compile(function, fullgraph=True, dynamic=True)
    x = torch.randn(3)
    for flag, count, scale in ((True, 3, 0.5), (False, 4, 0.25), (True, 5, 0.75)):
        out, *others = compiled(x.to("tpu"), flag, count, scale)
        expected, *wanted = function(x, flag, count, scale)
        assert_same(out, expected)
        assert others == wanted


def test_cpu_tensors_among_the_inputs() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y.add_(1)
        return x * y.sum().to(x.device), y * 2

    x, y, expected_y = torch.randn(3), torch.ones(2), torch.ones(2)
    compiled = torch.compile(function, fullgraph=True)
    on_device, on_cpu = compiled(x.to("tpu"), y)
    expected = function(x, expected_y)
    assert_same(on_device, expected[0])
    assert on_cpu.device.type == y.device.type == "cpu"
    assert torch.equal(on_cpu, expected[1])
    assert torch.equal(y, expected_y)


def test_a_write_takes_the_memory_of_what_it_replaces() -> None:
    state = torch.zeros(1 << 20, device="tpu")
    compiled = torch.compile(lambda s: s.add_(1).sum(), fullgraph=True)
    compiled(state)
    tpu.synchronize()
    tpu.reset_peak_memory_stats()
    before = tpu.memory_allocated()
    compiled(state)
    tpu.synchronize()
    assert tpu.max_memory_allocated() - before < state.nbytes // 2


def test_several_devices() -> None:
    subprocess_python.run(
        """
        import torch
        def function(x):
            return x * 2 + torch.arange(3, device=x.device) + torch.rand_like(x) * 0
        compiled = torch.compile(function, fullgraph=True)
        for index in (1, 0):
            x = torch.ones(3, device=f"tpu:{index}")
            out = compiled(x)
            assert out.device == x.device
            assert out.tolist() == [2, 3, 4]
        def made():
            return torch.arange(3, device="tpu:1") + 1
        assert torch.compile(made, fullgraph=True)().device.index == 1
        def both(x, y, w):
            return (x.sin() + y.to("tpu:0") * 2) @ w, (y * x.sum().to("tpu:1")).cos(), y + 1
        x, y, w = torch.randn(2, 3), torch.randn(2, 3), torch.randn(3, 3, requires_grad=True)
        on_device = w.detach().to("tpu:0").requires_grad_()
        out = torch.compile(both, fullgraph=True)(x.to("tpu:0"), y.to("tpu:1"), on_device)
        assert [t.device.index for t in out] == [0, 1, 1]
        a, b, c = (x.sin() + y * 2) @ w, (y * x.sum()).cos(), y + 1
        for ours, theirs in zip(out, (a, b, c)):
            torch.testing.assert_close(ours.cpu(), theirs, rtol=0.02, atol=0.05)
        out[0].sum().backward()
        a.sum().backward()
        torch.testing.assert_close(on_device.grad.cpu(), w.grad, rtol=0.02, atol=0.05)
        def on_cpu(x, y):
            return x + 1, y.cpu().sum() + 1, x.cpu().sum() * y.cpu().sum()
        out = torch.compile(on_cpu, fullgraph=True)(x.to("tpu:0"), y.to("tpu:1"))
        assert [t.device.type for t in out] == ["tpu", "cpu", "cpu"]
        for ours, theirs in zip(out, on_cpu(x, y)):
            torch.testing.assert_close(ours.cpu(), theirs)
        def current(x):
            return x + torch.tpu.current_device()
        compiled = torch.compile(current, fullgraph=True)
        for index in (0, 1):
            with torch.tpu.device(index):
                assert compiled(torch.zeros(1, device="tpu")).item() == index
        def unnamed(x):
            return x + torch.arange(3, device="tpu"), torch.ones(2).to("tpu") * 2
        def of_nothing():
            return torch.full((3,), 2.0, device="tpu").sin()
        for function, arguments in ((unnamed, 1), (of_nothing, 0)):
            torch._dynamo.reset()
            compiled = torch.compile(function, fullgraph=True)
            for index in (0, 1, 0):
                with torch.tpu.device(index):
                    xs = [torch.ones(3, device="tpu")] * arguments
                    ours, theirs = compiled(*xs), function(*xs)
                    if not arguments:
                        ours, theirs = [ours], [theirs]
                    for a, b in zip(ours, theirs):
                        assert a.device == b.device == torch.device("tpu", index)
                        assert a.tolist() == b.tolist()
        """,
        TORCH_TPU_CPU_DEVICES="2",
    )


# --- Autograd, autocast, hooks, function transforms ---------------------------------------------


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return grad * 7 * x  # not the gradient, so that nobody else's is taken for it


def test_autograd_function() -> None:
    check(lambda x: Cube.apply(x).sin(), torch.randn(4, requires_grad=True), rtol=1e-5)


@pytest.mark.parametrize(
    "write",
    [lambda x, y: x.add_(1), lambda x, y: x[1:].zero_(), lambda x, y: y.mul_(2)],
    ids=["an input", "a view of it", "a result"],
)
def test_a_write_to_what_the_backward_needs_is_noticed(write: Function) -> None:
    """As in eager mode: the gradient would be wrong."""
    compiled = torch.compile(lambda x, w: (x @ w, (x @ w).exp()), fullgraph=True)
    x = torch.randn(3, 4, device="tpu")
    w = torch.randn(4, 2, device="tpu", requires_grad=True)
    outs = compiled(x, w)
    with torch.no_grad():
        write(x, outs[1])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        sum(out.sum() for out in outs).backward()


def test_a_write_to_a_cpu_tensor_that_the_backward_needs_is_noticed() -> None:
    compiled = torch.compile(lambda x, factor: x * factor, fullgraph=True)
    x, factor = torch.randn(3, device="tpu", requires_grad=True), torch.tensor(2.0)
    out = compiled(x, factor)
    factor.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_no_grad_and_inference_mode() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh()).to("tpu")
    compiled = torch.compile(model, fullgraph=True)
    x = torch.randn(2, 3, device="tpu")
    with torch.inference_mode():
        inference = compiled(x)
    assert inference.is_inference()
    with torch.no_grad():
        constant = compiled(x)
    assert not constant.requires_grad
    trained = compiled(x)
    assert trained.requires_grad
    expected = model(x)
    for out in (inference, constant, trained):
        torch.testing.assert_close(out, expected)


def autocast_inside(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        return model(x)


@pytest.mark.parametrize("inside", [True, False])
def test_autocast(inside: bool) -> None:
    """Autocast has its effect once, whether it is around the call or in the graph."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 4))
    model.to("tpu")
    x = torch.randn(2, 8, device="tpu")
    expected = autocast_inside(model, x)
    expected.sum().backward()
    gradients = [p.grad for p in model.parameters()]
    model.zero_grad()
    if inside:
        out = torch.compile(autocast_inside, fullgraph=True)(model, x)
    else:
        with torch.autocast("tpu", dtype=torch.bfloat16):
            out = torch.compile(model, fullgraph=True)(x)
    out.sum().backward()
    assert out.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(out, expected, rtol=0.02, atol=0.02)
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        assert parameter.grad is not None
        assert parameter.grad.dtype == torch.float32
        torch.testing.assert_close(parameter.grad, gradient, rtol=0.05, atol=0.05)


def test_hooks() -> None:
    model = torch.nn.Linear(3, 3)
    model.register_forward_hook(lambda module, inputs, output: output * 2)
    x = torch.randn(2, 3)
    expected = model(x)
    on_device = model.to("tpu")
    compiled = torch.compile(on_device, fullgraph=True)
    assert_same(compiled(x.to("tpu")), expected, rtol=1e-5, atol=1e-6)

    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y.register_hook(lambda grad: grad * 3)
        return y.sum()

    leaf = torch.ones(3, device="tpu", requires_grad=True)
    seen = []
    leaf.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad))
    torch.compile(function)(leaf).backward()
    assert leaf.grad is not None
    assert_same(leaf.grad, torch.full((3,), 6.0))
    assert len(seen) == 1


def test_vmap_and_grad() -> None:
    def loss(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return (weight @ x).sin().sum()

    def function(weight: torch.Tensor, xs: torch.Tensor) -> torch.Tensor:
        return torch.func.vmap(torch.func.grad(loss), (None, 0))(weight, xs)

    check(function, torch.randn(2, 3), torch.randn(5, 3), rtol=1e-5)
    check(lambda x: torch.func.jacrev(torch.sin)(x), torch.randn(4), rtol=1e-5)


# --- Random numbers -----------------------------------------------------------------------------


def random_numbers(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (
        torch.rand_like(x) + F.dropout(x, 0.5),
        torch.randn(3, device=x.device),
        torch.randint(10, (4,), device=x.device),
        torch.bernoulli(torch.full_like(x, 0.5)),
    )


def test_random_numbers_are_the_eager_ones() -> None:
    compiled = torch.compile(random_numbers, fullgraph=True)
    x = torch.ones(5, device="tpu")
    torch.manual_seed(1)
    ours = [*compiled(x), *compiled(x), torch.rand(2, device="tpu")]
    torch.manual_seed(1)
    eager = [*random_numbers(x), *random_numbers(x), torch.rand(2, device="tpu")]
    for a, b in zip(ours, eager, strict=True):
        torch.testing.assert_close(a, b)


class Block(torch.nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first = torch.nn.Linear(width, 2 * width)
        self.second = torch.nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + F.dropout(self.second(F.dropout(F.gelu(self.first(x)), 0.3)), 0.5)


@pytest.mark.parametrize("compiled", [True, False])
def test_checkpoint_draws_the_same_numbers_again(compiled: bool) -> None:
    blocks = torch.nn.ModuleList([Block(), Block()]).to("tpu")

    def function(x: torch.Tensor) -> torch.Tensor:
        for block in blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x.square().sum()

    def plain(x: torch.Tensor) -> torch.Tensor:
        for block in blocks:
            x = block(x)
        return x.square().sum()

    x = torch.randn(3, 8, device="tpu", requires_grad=True)
    results = []
    for call in (torch.compile(function, fullgraph=True) if compiled else function, plain):
        torch.manual_seed(2)
        x.grad = None
        blocks.zero_grad()
        loss = call(x)
        loss.backward()
        gradients = [x.grad, *(p.grad for p in blocks.parameters())]
        results.append([loss.detach(), *gradients, torch.rand(2, device="tpu")])
    for ours, eager in zip(*results, strict=True):
        torch.testing.assert_close(ours, eager)


# --- What no program can hold -------------------------------------------------------------------


@contextlib.contextmanager
def performance_warnings() -> Iterator[list[str]]:
    """The messages of PerformanceWarning about graphs."""
    messages: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield messages
    messages += [
        str(w.message)
        for w in caught
        if w.category is PerformanceWarning and str(w.message).startswith("torch.compile")
    ]


def test_an_operator_without_a_rule_runs_by_itself() -> None:
    """What is written before it is written once, and what is around it is a program."""

    def function(x: torch.Tensor, count: torch.Tensor) -> Any:
        count.add_(1)
        y = (x * 2).cos() + 1
        values, vectors = torch.linalg.eig(y)
        again = torch.linalg.eigvals(y.mT)
        return values.abs().sum() + y.sum(), vectors.abs().sum(), again.abs().sum(), count + 1

    compiled = torch.compile(function, fullgraph=True)
    x, count, expected_count = torch.randn(3, 3), torch.zeros(2), torch.zeros(2)
    on_device, device_count = x.to("tpu"), count.to("tpu")
    for call in range(2):
        with performance_warnings() as messages:
            out = compiled(on_device, device_count)
        expected = function(x, expected_count)
        for ours, theirs in zip(out, expected, strict=True):
            assert_same(ours, theirs, rtol=1e-4, atol=1e-4)
        assert_same(device_count, expected_count)
        if call == 0:
            assert "linalg_eig" in messages[0] and "test_compile.py" in messages[0]
        assert len(messages) == len(set(messages)) <= (2 if call == 0 else 0)


class Spectrum(torch.nn.Module):
    """A layer of PyTorch's before the operator that runs by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)
        self.line = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        return torch.linalg.eigvals(y).abs().sum()


def test_the_warning_points_to_the_model() -> None:
    """Of the forward and of the backward, which runs on a thread of autograd."""
    model = Spectrum().to("tpu")
    first = Spectrum.forward.__code__.co_firstlineno
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.compile(model)(torch.randn(3, 3, device="tpu")).backward()
        tpu.synchronize()
    found = [w for w in caught if w.category is PerformanceWarning and "program" in str(w.message)]
    assert {str(w.message).split(" is not one program: ")[0] for w in found} == {
        f"torch.compile: graph {str(w.message).split()[2].rstrip(',')}, {direction}"
        for w in found[:1]
        for direction in ("forward", "backward")
    }
    assert {(w.filename, w.lineno) for w in found} == {(__file__, first + 2)}
    assert "aten::linalg_eig runs by itself, because" in str(found[0].message)


def test_its_gradient_too() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.eig(x.cos())[0].abs().sum() * x.sum()

    with performance_warnings() as messages:
        check(function, torch.randn(3, 3, requires_grad=True), rtol=1e-3)
    assert messages


@torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True)
def test_values_that_are_needed_on_the_host() -> None:
    def function(x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, ...]:
        size = int(n.max().item())
        torch._check(size >= 2)
        torch._check(size < 10)
        return torch.zeros(size, device=x.device) + x.sum(), (x.sin() > 0).nonzero() * 2

    compiled = torch.compile(function, fullgraph=True)
    for size in (3, 5):
        x, n = torch.randn(6), torch.tensor([1, size])
        ours = compiled(x.to("tpu"), n.to("tpu"))
        for a, b in zip(ours, function(x, n), strict=True):
            assert_same(a, b)


# --- Modes, warm-up, threads, processes ---------------------------------------------------------


@pytest.mark.parametrize("mode", list(EagerMode))
def test_every_eager_mode(mode: EagerMode) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return (x @ w).tanh()

    with tpu.set_eager_mode(mode):
        check(function, torch.randn(4, 3), torch.randn(3, 2, requires_grad=True), rtol=1e-5)
        y = torch.ones(2, 3, device="tpu") * 2
        compiled = torch.compile(function, fullgraph=True)
        out = compiled(y + 1, torch.ones(3, 2, device="tpu")) - 1
        assert_same(out, torch.full((2, 2), 12.0).tanh() - 1)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_warmup_leaves_nothing_without_data_behind(dynamic: bool) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (x * torch.tensor(2.0) + torch.tensor([1.0, 2.0]).to(x.device)).mean(0)

    compiled = torch.compile(function, dynamic=dynamic)
    x = torch.randn(5, 2)
    tpu.warmup(compiled, x.to("tpu"))
    assert_same(compiled(x.to("tpu")), function(x), rtol=1e-5, atol=1e-6)


def test_a_warmup_makes_the_graphs_constants() -> None:
    compiled = torch.compile(lambda x: x + torch.tensor([1.0, 2.0, 3.0], device=x.device))
    x = torch.ones(3, device="tpu")
    tpu.warmup(compiled, x)
    assert compiled(x).tolist() == [2, 3, 4]


@pytest.mark.single_operators
def test_warmup_compiles_what_a_call_needs() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh()).to("tpu")
    compiled = torch.compile(model, fullgraph=True)
    x = torch.randn(2, 3, device="tpu")
    tpu.warmup(lambda: compiled(x).sum().backward())
    assert all(p.grad is None for p in model.parameters())
    tpu.synchronize()
    before = dispatch_stats()["compiles"]
    compiled(x).sum().backward()
    tpu.synchronize()
    assert dispatch_stats()["compiles"] == before


@pytest.mark.parametrize("mode", list(EagerMode))
def test_explain_names_graphs(mode: EagerMode) -> None:
    compiled = torch.compile(lambda x: x.erf() * 3, fullgraph=True)
    x = torch.ones(7, device="tpu")
    with tpu.set_eager_mode(mode):
        with tpu.explain() as first:
            kept = compiled(x)
        with tpu.explain() as again:
            kept = compiled(x)
    assert_same(kept, x.cpu().erf() * 3)
    for explanation, known in ((first, False), (again, True)):
        (program,) = explanation.programs
        assert program.calls[0].startswith("graph ")
        assert program.calls[0].endswith(", inference")
        assert program.known == known


def test_tracing_is_timed_apart_from_compiling() -> None:
    tpu.reset_dispatch_stats()
    before = tpu.compile_times()
    assert before.dynamo == before.compiling == 0
    y = torch.compile(lambda x: x.erfc() * 5, fullgraph=True)(torch.ones(5, device="tpu"))
    tpu.synchronize()
    after = tpu.compile_times()
    assert after.dynamo > 0
    assert after.aot > before.aot
    assert after.lowering > before.lowering
    assert after.compiling + after.loading > 0
    assert "lowering" in str(after)
    assert_same(y, torch.ones(5).erfc() * 5, rtol=1e-5, atol=1e-6)


def test_threads_share_a_compiled_function() -> None:
    compiled = torch.compile(lambda x, w: (x @ w).relu().sum(0), fullgraph=True)
    w = torch.randn(4, 3)
    compiled(torch.ones(1, 4, device="tpu"), w.to("tpu"))
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for rows in (2, 3, 2):
                x = torch.full((rows, 4), float(seed))
                out = compiled(x.to("tpu"), w.to("tpu"))
                torch.testing.assert_close(out.cpu(), (x @ w).relu().sum(0))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_lowering_leaves_what_another_thread_traces_with_alone() -> None:
    """PyTorch notes in a global which node is interpreted, while a graph is being traced."""
    seen = []

    def probe(x: torch.Tensor) -> torch.Tensor:
        seen.append(torch.fx.traceback.get_current_meta())
        return x + 1

    graph = torch.fx.Graph()
    node = graph.call_function(probe, (graph.placeholder("x"),))
    node.meta["stack_trace"] = "somewhere"
    graph.output([node])
    call = compile_graph(torch.fx.GraphModule({}, graph), "probed")
    with torch.fx.traceback.preserve_node_meta():
        outside = torch.fx.traceback.get_current_meta()
        (out,) = call([torch.ones(2, device="tpu")])
    assert len(seen) == 1 and seen[0] is outside
    assert_same(out, torch.full((2,), 2.0))


def test_another_process_compiles_nothing(tmp_path: Any) -> None:
    code = """
    import torch
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Dropout(), torch.nn.Tanh())
    model = torch.compile(model.to("tpu"), fullgraph=True)
    x = torch.randn(2, 3).to("tpu")
    loss = model(x).sum()
    loss.backward()
    torch.tpu.synchronize()
    print(loss.item(), torch.tpu.dispatch_stats()["compiles"])
    """
    cache: dict[str, Any] = {
        "TORCH_TPU_TIER2_COMPILATION_CACHE": "disabled",
        "TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT": str(tmp_path),
    }
    runs = [subprocess_python.run(code, **cache).split() for _ in "ab"]
    assert runs[0][0] == runs[1][0]
    assert int(runs[0][1]) > 0
    assert int(runs[1][1]) == 0


def test_many_tensors() -> None:
    """More of them than slots are looked for one by one, some with a storage in common."""

    def run(values: list[torch.Tensor]) -> list[torch.Tensor]:
        values[7].mul_(2)
        return [*(v + i for i, v in enumerate(values)), values[3], values[5][1:]]

    on_cpu = [torch.arange(4.0) + i for i in range(150)]
    on_cpu += [v[1:3] for v in on_cpu]
    on_device = [v.to("tpu") for v in on_cpu[:150]]
    on_device += [v[1:3] for v in on_device]
    compiled = torch.compile(run, fullgraph=True)
    for _ in range(2):
        results = compiled(on_device)
        for actual, expected in zip(results, run(on_cpu), strict=True):
            assert_same(actual, expected)
        assert results[-2] is on_device[3]
        assert results[-1].untyped_storage().data_ptr() == on_device[5].untyped_storage().data_ptr()
    for actual, expected in zip(on_device, on_cpu, strict=True):
        assert_same(actual, expected)


def test_results_that_die_on_another_thread() -> None:
    compiled = torch.compile(lambda values: [v + 1 for v in values], fullgraph=True)
    values = [torch.full((2,), float(i), device="tpu") for i in range(60)]
    held = compiled(values)
    tpu.synchronize()
    before = tpu.memory_allocated()

    def drop() -> None:
        held.clear()

    thread = threading.Thread(target=drop)
    thread.start()
    thread.join()
    assert tpu.memory_allocated() == before - 60 * 8  # bytes
    results = compiled(values)
    assert tpu.memory_allocated() == before
    for i in range(60):
        assert_same(results[i], torch.full((2,), i + 1.0))


def test_a_call_lets_go_of_its_inputs() -> None:
    """The caller's list is empty then, and what nobody else holds is gone; also after an error."""

    def body(inputs: list[Any]) -> list[Any]:
        first, second, host = inputs
        if first.dim() == 2:
            raise ValueError("no matrices")
        return [first + second + host, second]

    graph = _C.CompiledGraph("sum", body, [], [])
    second, host = torch.tensor([1.0, 2.0], device="tpu"), torch.tensor([3.0, 4.0])
    for third in (host, host.to("tpu")):
        for _ in range(2):
            inputs = [torch.full((2,), 5.0, device="tpu"), second, third]
            gone = weakref.ref(inputs[0])
            total, same = graph(inputs)
            assert inputs == [] and gone() is None
            assert same is second
            assert_same(total, torch.tensor([9.0, 11.0]))
    del same
    inputs = [torch.ones(2, 2, device="tpu"), second, host]
    gone = weakref.ref(inputs[0])
    with pytest.raises(ValueError, match="no matrices"):
        graph(inputs)
    assert inputs == [] and gone() is None
    assert sys.getrefcount(second) == 2  # here, and in the argument


def test_inputs_among_the_results() -> None:
    graph = _C.CompiledGraph("inputs", lambda inputs: [inputs[2], inputs[0], inputs[2], 3], [], [])
    x, host = torch.rand(2, device="tpu"), torch.rand(2)
    results = graph([x, 1, host])
    assert results[1] is x and results[3] == 3
    for copy in (results[0], results[2]):
        assert copy.device.type == "tpu"
        assert_same(copy, host)
    back = _C.CompiledGraph("back", lambda inputs: [inputs[0], inputs[1]], [], [True, False])
    on_host, y = back([host, x])
    assert on_host is host and y.device.type == "tpu"
    assert_same(y, x.cpu())
