"""Interpolation of images under torch.compile: one operator, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import compare
import dynamic_graphs
import pytest
import torch
from torch import Tensor, nn

import torch_tpu.compiler.dynamic as dynamic
from torch_tpu import tpu


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


SIZES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "linear": ((2, 3, 7), (13,)),
    "bilinear": ((2, 3, 7, 9), (13, 5)),
    "bicubic": ((2, 3, 7, 9), (13, 5)),
    "trilinear": ((2, 3, 7, 9, 4), (3, 5, 8)),
}


def resized(x: Tensor, **how: Any) -> Tensor:
    return nn.functional.interpolate(x, **how)


def compiled_programs(function: Any, *args: Tensor) -> tuple[Any, str]:
    """What the compiled function gives, and the texts of its programs."""
    with tpu.explain() as explanation:
        out = torch.compile(function, backend="tpu", fullgraph=True)(*args)
        if out.requires_grad:
            out.square().sum().backward()
        tpu.synchronize()
    return out, "".join(program.stablehlo for program in explanation.programs)


@pytest.mark.parametrize("how", ["size", "scale", "aligned"])
@pytest.mark.parametrize("mode", SIZES)
def test_values_and_gradients(mode: str, how: str, device: torch.device) -> None:
    shape, size = SIZES[mode]
    arguments: dict[str, Any] = {"mode": mode, "align_corners": how == "aligned"}
    arguments.update({"scale_factor": 1.7} if how == "scale" else {"size": size})

    def function(x: Tensor) -> Tensor:
        return resized(x, **arguments)

    expected = torch.randn(shape, requires_grad=True)
    given = expected.detach().to(device).requires_grad_()
    out, text = compiled_programs(function, given)
    compare.assert_same(out, function(expected), rtol=1e-4, atol=1e-4)
    function(expected).square().sum().backward()
    assert given.grad is not None and expected.grad is not None
    compare.assert_same(given.grad, expected.grad, rtol=1e-4, atol=1e-4)
    assert text and "gather" not in text and "scatter" not in text


@pytest.mark.parametrize("context", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_bytes_are_those_of_the_operator(mode: str, context: Any, device: torch.device) -> None:
    image = torch.randint(0, 256, (2, 3, 7, 9), dtype=torch.uint8)
    for how in ({"size": (13, 5)}, {"scale_factor": 1.7}):
        torch._dynamo.reset()

        def function(x: Tensor, how: Any = how) -> Tensor:
            return resized(x, mode=mode, **how)

        with context():
            out, _ = compiled_programs(function, image.to(device))
            compare.assert_same(out, function(image), rtol=0, atol=0)
            for dynamic_sizes in (True, False):
                again = torch.compile(function, backend="tpu", dynamic=dynamic_sizes)
                compare.assert_same(again(image.to(device)), function(image), rtol=0, atol=0)


# In three dimensions the first may be the image's, as far as the rule can tell.
@pytest.mark.parametrize("mode", ["bilinear", "bicubic", "trilinear"])
def test_a_batch_that_changes(
    mode: str, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One program for a bucket, whose padding reaches no result."""
    made = dynamic_graphs.recorded(monkeypatch)
    monkeypatch.setattr(dynamic, "padding_value", lambda dtype: torch.nan)
    shape, size = SIZES[mode]

    def function(x: Tensor) -> Tensor:
        return resized(x * 2, mode=mode, size=size).sin()

    compiled = torch.compile(function, backend="tpu", fullgraph=True)
    for batch in (5, 6, 7):
        expected = torch.randn(batch, *shape[1:], requires_grad=True)
        given = expected.detach().to(device).requires_grad_()
        torch._dynamo.mark_dynamic(given, 0)
        out = compiled(given)
        compare.assert_same(out, function(expected), rtol=1e-4, atol=1e-4)
        out.square().sum().backward()
        function(expected).square().sum().backward()
        assert given.grad is not None and expected.grad is not None
        compare.assert_same(given.grad, expected.grad, rtol=1e-4, atol=1e-4)
    assert len(made) == 2
    for graph in made:
        assert graph.is_padded and graph.num_programs == 2  # of 6 and of 8


def test_image_sizes_that_change(device: torch.device) -> None:
    """Without gradients they are numbers of one program, of what PyTorch makes of the operator."""
    compiled = torch.compile(
        lambda x: resized(x, mode="bilinear", scale_factor=2.0), backend="tpu", dynamic=True
    )
    with torch.no_grad():
        for height in (9, 11, 12):
            x = torch.randn(2, 3, height, 5)
            expected = resized(x, mode="bilinear", scale_factor=2.0)
            compare.assert_same(compiled(x.to(device)), expected, rtol=1e-4, atol=1e-4)
    for height in (8, 10):  # in training each size has programs of its own
        x = torch.randn(2, 3, height, 5, requires_grad=True)
        given = x.detach().to(device).requires_grad_()
        out, expected = compiled(given), resized(x, mode="bilinear", scale_factor=2.0)
        compare.assert_same(out, expected, rtol=1e-4, atol=1e-4)
        out.square().sum().backward()
        expected.square().sum().backward()
        assert given.grad is not None and x.grad is not None
        compare.assert_same(given.grad, x.grad, rtol=1e-4, atol=1e-4)
