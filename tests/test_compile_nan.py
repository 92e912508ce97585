"""torch.tpu.debug.check_nan() and functions that are compiled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from torch_tpu import tpu


@pytest.fixture(autouse=True)
def new_graphs() -> Iterator[None]:
    yield
    torch._dynamo.reset()


def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    a = x.sin()
    b = torch.log(y)
    return (a * b).sum()


def notes(error: BaseException) -> str:
    return "".join(getattr(error, "__notes__", []))


@pytest.mark.parametrize("dynamic", [False, True])
def test_the_operator_of_a_graph_is_named(dynamic: bool, device: torch.device) -> None:
    compiled = torch.compile(function, dynamic=dynamic)
    x = torch.rand(5, 3, requires_grad=True)
    y = torch.rand(5, 3) + 1
    there = x.detach().to(device).requires_grad_()
    plain = compiled(there, y.to(device))  # one program, by now compiled
    with tpu.debug.check_nan():
        torch.testing.assert_close(compiled(there, y.to(device)).cpu(), function(x, y))
        with pytest.raises(
            RuntimeError, match=r"aten::log: result float32\[5, 3\] has 15 NaN"
        ) as e:
            compiled(there, -y.to(device))
        assert "b = torch.log(y)" in notes(e.value)  # the line of the model
    assert compiled(there, -y.to(device)).isnan()
    torch.testing.assert_close(compiled(there, y.to(device)), plain)
    with tpu.debug.check_nan("warn"), pytest.warns(UserWarning, match="aten::log"):
        assert compiled(there, -y.to(device)).isnan()


@pytest.mark.parametrize("dynamic", [False, True])
def test_in_backward(dynamic: bool, device: torch.device) -> None:
    compiled = torch.compile(lambda x: x.sqrt().sum(), dynamic=dynamic)
    x = torch.zeros(4, device=device, requires_grad=True)
    with tpu.debug.check_nan():
        result = compiled(x)
        with pytest.raises(RuntimeError, match=r"aten::div.*infinite of 4") as e:
            result.backward()
        assert "x.sqrt()" in notes(e.value)
    compiled(x).backward()
    assert x.grad is not None and x.grad.isinf().all()


def test_a_forward_of_before(device: torch.device) -> None:
    """The check may begin between a forward and its backward, whose tensors may have padding."""
    compiled = torch.compile(lambda x: (x.sin() * x).sum(), dynamic=True)
    x = torch.rand(5, 3)
    there = x.to(device).requires_grad_()
    result = compiled(there)
    with tpu.debug.check_nan():
        result.backward()
    x.requires_grad_()
    (x.sin() * x).sum().backward()
    assert there.grad is not None
    torch.testing.assert_close(there.grad.cpu(), x.grad)


def test_writes_random_numbers_and_the_host(device: torch.device) -> None:
    """Without a program a graph does what it does with one."""

    def step(x: torch.Tensor, state: torch.Tensor, host: torch.Tensor) -> Any:
        state.add_(x)
        host.mul_(2)
        dropped = torch.nn.functional.dropout(x, 0.5)
        return dropped, state.view(-1), host + 1, x.shape[0]

    compiled = torch.compile(step)

    def run() -> list[Any]:
        torch.manual_seed(3)
        x, state, host = torch.ones(4, 4).to(device), torch.ones(4, 4).to(device), torch.ones(3)
        out = [*compiled(x, state, host), state, host, torch.rand(2, device=device)]
        return [t.cpu() if isinstance(t, torch.Tensor) else t for t in out]

    expected = run()
    with tpu.debug.check_nan():
        given = run()
    assert given[2].device.type == "cpu"
    torch.testing.assert_close(given, expected)


def test_control_flow(device: torch.device) -> None:
    def choose(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.log(), lambda x: x.exp(), (x,))

    compiled = torch.compile(choose)
    x = torch.tensor([2.0, -1.0], device=device)
    with tpu.debug.check_nan():
        torch.testing.assert_close(compiled(x - 2).cpu(), (x - 2).exp().cpu())
        with pytest.raises(RuntimeError, match="aten::log"):
            compiled(x)


def test_a_compiled_step(device: torch.device) -> None:
    p = torch.ones(3, device=device, requires_grad=True)
    optimizer = torch.optim.SGD([p], lr=0.1)

    @tpu.compile_step
    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = (p * x).sqrt().sum()
        loss.backward()
        optimizer.step()
        return loss

    x = torch.ones(3, device=device)
    for _ in range(3):
        step(x)
    with tpu.debug.check_nan():
        step(x)
        with pytest.raises(RuntimeError, match="aten::sqrt"):
            step(-x)
    step(x)
    assert step.num_programs == 1 and step.fallback_reason is None
