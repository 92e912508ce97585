"""torch.tpu.explain() and functions that are compiled: why there is a new program."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from torch_tpu import _C, tpu
from torch_tpu.tpu import EagerMode


@pytest.fixture(autouse=True)
def begin_strict() -> Iterator[None]:
    """In deferred mode a compiled graph is recorded as an operator is."""
    with tpu.set_eager_mode(EagerMode.DEFER_NEVER):
        yield
    torch._dynamo.reset()


def reasons(function: Callable[[], Any]) -> list[str]:
    """Of the programs of compiled graphs that are new."""
    with tpu.explain() as explanation:
        function()
    return [
        program.difference
        for program in explanation.programs
        if program.reason == "a compiled graph" and not program.known
    ]


def test_a_graph_that_is_traced_again(device: torch.device) -> None:
    """What Dynamo's guards say: sizes, dtypes, strides, numbers."""

    def function(x: torch.Tensor, n: int = 0) -> torch.Tensor:
        return (x * 2).relu() + n

    compiled = torch.compile(function, dynamic=False)
    x = torch.rand(4, 3, device=device)
    assert reasons(lambda: compiled(x)) == [""]
    assert reasons(lambda: compiled(x)) == []
    (size,) = reasons(lambda: compiled(torch.rand(4, 5, device=device)))
    assert "size mismatch at index 1. expected 3, actual 5" in size
    (dtype,) = reasons(lambda: compiled(x.half()))
    assert "dtype mismatch" in dtype
    reasons(lambda: compiled(x))  # Dynamo compares with the one that was used last
    (stride,) = reasons(lambda: compiled(torch.rand(3, 4, device=device).t()))
    assert "stride mismatch" in stride
    reasons(lambda: compiled(x))
    (number,) = reasons(lambda: compiled(x, 1))
    assert "n == 0" in number


def test_backward_too(device: torch.device) -> None:
    compiled = torch.compile(lambda x: (x.sin() * x).sum(), dynamic=False)

    def step(size: int) -> None:
        compiled(torch.rand(size, device=device, requires_grad=True)).backward()

    assert reasons(lambda: step(3)) == ["", ""]
    both = reasons(lambda: step(4))
    assert len(both) == 2
    assert all("expected 3, actual 4" in reason for reason in both)


def test_a_graph_of_dynamic_sizes(device: torch.device) -> None:
    compiled = torch.compile(lambda x: x.sin() + x.shape[1], dynamic=True)
    reasons(lambda: compiled(torch.rand(4, 5, device=device)))
    assert reasons(lambda: compiled(torch.rand(4, 6, device=device))) == []
    (padding, graph, trimming) = reasons(lambda: compiled(torch.rand(4, 7, device=device)))
    assert graph == "input 0: dimension 1 is 8, was 6"
    assert "the true sizes" in padding and "= 7" in padding
    assert padding == trimming


FORMS: dict[str, tuple[Callable[[torch.Tensor], list[Any]], str]] = {
    "size": (lambda x: [x[:2].clone(), 1], "input 0: dimension 0 is 2, was 4"),
    "rank": (lambda x: [x[0].clone(), 1], "input 0: its dimensions are 1, was 2"),
    "dtype": (lambda x: [x.int(), 1], "input 0: dtype int32, was float32"),
    "strides": (lambda x: [x.clone().t(), 1], "input 0: the stride of dimension 0 is 1"),
    "view": (
        lambda x: [torch.rand(5, 4, device=x.device)[1:], 1],
        "its offset in the storage is 4",
    ),
    "storage": (
        lambda x: [torch.rand(5, 4, device=x.device)[:4], 1],
        "its storage is tensor<5x4xf32>",
    ),
    "number": (lambda x: [x, 2], "input 1: it is 2, was 1"),
    "none": (lambda x: [None, 1], "input 0: it is None, was a tensor"),
}


@pytest.mark.parametrize("name", FORMS)
def test_another_program_of_one_graph(name: str, device: torch.device) -> None:
    """The first difference to the nearest of those that there are."""
    make, expected = FORMS[name]

    def body(inputs: list[Any]) -> list[Any]:
        t, n = inputs
        return [torch.zeros(2, device=device) + n if t is None else t * n]

    graph = _C.CompiledGraph("one", body, [], [], origin="first of its kind")
    x = torch.rand(4, 4, device=device)
    assert reasons(lambda: graph([x, 1])) == ["first of its kind"]
    far = torch.rand(7, 7, 7, device=device).half()
    reasons(lambda: graph([far, 3]))
    assert reasons(lambda: graph([x, 1])) == []
    (found,) = reasons(lambda: graph(make(x)))
    assert expected in found


def test_the_precision(device: torch.device) -> None:
    graph = _C.CompiledGraph("product", lambda inputs: [inputs[0] @ inputs[0]], [], [])
    x = torch.rand(4, 4, device=device)
    with tpu.precision("high"):
        reasons(lambda: graph([x]))
    with tpu.precision("highest"):
        (found,) = reasons(lambda: graph([x]))
    assert found == "the precision of float32 products is another one"


def test_in_deferred_mode(device: torch.device) -> None:
    """There it is the reason of the fused program that the graph is a part of."""
    compiled = torch.compile(lambda x: (x * 2).relu(), dynamic=False)
    small, large = torch.rand(4, 3, device=device), torch.rand(4, 5, device=device)
    with tpu.set_eager_mode(EagerMode.DEFER_AND_FUSE):
        for x, expected in ((small, ""), (large, "size mismatch at index 1. expected 3, actual 5")):
            with tpu.explain() as explanation:
                compiled(x).cpu()
            (program,) = [p for p in explanation.programs if "inference" in p.calls[0]]
            assert not program.known
            assert expected in program.difference
