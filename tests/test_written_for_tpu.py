"""Steps written for a TPU: right wherever they run, in the form that its compiler takes best."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import compare
import pytest
import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from torch_tpu import aot, tpu

needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed"
)


def traced(function: Callable[..., Any], *arguments: torch.Tensor) -> tuple[Any, Any]:
    """The function as a step written for a TPU, and its results."""
    step = tpu.compile_step(function)
    with aot.written_for_tpu():
        for _ in range(2):
            results = step(*arguments)
    return step, results


def check(function: Callable[..., Any], *arguments: torch.Tensor) -> Any:
    """Asserts that the results are those of the CPU; gives the step."""

    def placed(device: str) -> list[torch.Tensor]:
        copies = [a.detach().to(device) for a in arguments]
        return [c.requires_grad_(c.is_floating_point()) for c in copies]

    step, actual = traced(function, *placed(compare.DEVICE))
    expected = function(*placed("cpu"))
    for a, e in zip(actual, expected, strict=True):
        compare.assert_same(a, e.detach(), rtol=1e-4, atol=1e-5)
    return step


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy(reduction: str) -> None:
    target = torch.randint(0, 7, (2, 5))
    target[0, 0], target[1, 3] = -100, 0

    def run(
        x: torch.Tensor, weight: torch.Tensor, by_class: torch.Tensor, target: torch.Tensor
    ) -> list[torch.Tensor]:
        scores = functional.linear(x, weight).view(-1, 7)
        rows = target.view(-1)
        options: dict[str, Any] = {"reduction": reduction}
        losses = [
            functional.cross_entropy(scores, rows, **options),
            functional.cross_entropy(scores, rows, by_class.detach(), **options),
            functional.cross_entropy(scores, rows.clamp(min=0), ignore_index=3, **options),
            functional.cross_entropy(scores, rows, label_smoothing=0.1, **options),
        ]
        total = torch.stack([loss.sin().sum() for loss in losses]).sum()
        return [*losses, *torch.autograd.grad(total, (x, weight))]

    check(run, torch.randn(2, 5, 3), torch.randn(7, 3), torch.rand(7) + 0.1, target)


def test_scores_that_are_not_finite() -> None:
    """Only the target's own score decides; what is ignored does not."""
    scores = torch.randn(2, 4, 5)
    scores[0, 1, 2], scores[0, 2, 1], scores[1, 0, 3] = -torch.inf, -torch.inf, torch.nan
    target = torch.tensor([[0, 2, 3, 4], [-100, 1, 2, 3]])

    def run(x: torch.Tensor, target: torch.Tensor) -> list[torch.Tensor]:
        logs = functional.log_softmax((x + 0).view(-1, 5), 1)
        loss = functional.nll_loss(logs, target.view(-1), reduction="none")
        return [loss, functional.nll_loss((x * 2).view(-1, 5), target.view(-1), reduction="none")]

    step = check(run, scores, target)
    assert "stablehlo.gather" not in step.text()


def test_scores_of_the_caller_are_gathered() -> None:
    def run(x: torch.Tensor, target: torch.Tensor) -> list[torch.Tensor]:
        return [functional.nll_loss(x.view(-1, 5), target.view(-1))]

    step = check(run, torch.randn(2, 4, 5), torch.randint(0, 5, (2, 4)))
    assert "stablehlo.gather" in step.text()


def test_layers_over_joined_rows() -> None:
    """Products, biases and softmax in the dimensions that the rows were joined from."""

    def run(
        x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, other: torch.Tensor
    ) -> list[torch.Tensor]:
        hidden = functional.linear(x, weight, bias).tanh()
        rows = hidden.view(-1, 6)
        out = [rows.softmax(-1), rows.log_softmax(1), rows.softmax(0), rows.sum(0), rows.sum(1)]
        total = sum((o.sin() * (i + 1)).sum() for i, o in enumerate(out))
        total = total + functional.linear(hidden, other).square().sum()
        return [*out, *torch.autograd.grad(total, (x, weight, bias, other))]

    arguments = (torch.randn(2, 5, 4), torch.randn(6, 4), torch.randn(6), torch.randn(3, 6))
    step = check(run, *arguments)
    assert "lhs_contracting_dimensions = [0, 1]" in step.text()


@needs_libtpu
@pytest.mark.parametrize("precision", ["medium", "highest"])
def test_checkpoint_takes_less_memory(precision: str) -> None:
    """What a checkpoint computes again is neither merged with the first time nor computed early."""

    def compiled(recompute: bool) -> aot.CompiledProgram:
        blocks = [
            torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.GELU(), torch.nn.Linear(512, 64))
            for _ in range(6)
        ]
        model = torch.nn.ModuleList(blocks).to("tpu")

        def step(x: torch.Tensor) -> torch.Tensor:
            model.zero_grad()
            for block in model:
                x = x + (checkpoint(block, x, use_reentrant=False) if recompute else block(x))
            loss = x.square().mean()
            loss.backward()
            return loss

        return aot.compile(traced(step, torch.randn(512, 64, device="tpu"))[0], "v5e:1x1")

    with tpu.precision(precision):
        kept, recomputed = compiled(False), compiled(True)
    assert recomputed.flops is not None and kept.flops is not None
    assert recomputed.flops > 1.1 * kept.flops
    assert recomputed.memory.peak is not None and kept.memory.peak is not None
    assert recomputed.memory.peak < 0.8 * kept.memory.peak
