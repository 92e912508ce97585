"""Attention that is written out is compiled as the operator for it, if it is that."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from compare import assert_close_to_scale

from torch_tpu.compiler import backend
from torch_tpu.compiler.attention import fuse_attention

F = torch.nn.functional
Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many attentions were found in each graph that was compiled."""
    torch.compiler.reset()
    counts: list[int] = []

    def count(graph: torch.fx.GraphModule) -> int:
        counts.append(fuse_attention(graph))
        return counts[-1]

    monkeypatch.setattr(backend, "fuse_attention", count)
    yield counts
    torch.compiler.reset()


def is_later(q: torch.Tensor) -> torch.Tensor:
    rows = q.shape[-2]
    return torch.ones(rows, rows, dtype=torch.bool, device=q.device).triu(1)


def nano_gpt(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
    scores = scores.masked_fill(is_later(q) != 0, float("-inf"))
    weights = F.dropout(F.softmax(scores, dim=-1), 0.1, training=False)
    return (weights @ v).transpose(1, 2).contiguous()


def added_mask(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    mask = torch.zeros(q.shape[-2], k.shape[-2], device=q.device).masked_fill(is_later(q), -1e9)
    scores = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(q.shape[-1]) + mask
    weights = F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
    return torch.matmul(weights, v)


def no_mask(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (q @ k.mT).softmax(-1) @ v


def weights_are_used_twice(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    weights = (q @ k.mT).softmax(-1)
    return weights @ v + weights.amax()


def other_dimension(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (q @ k.mT).softmax(-2) @ v


def scaled_mask(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return ((q @ k.mT + is_later(q).to(q.dtype)) * 0.5).softmax(-1) @ v


def finite_fill(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (q @ k.mT).masked_fill(is_later(q), 2.0).softmax(-1) @ v


def squared(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (q @ k.mT).square().softmax(-1) @ v


def check(function: Attention) -> None:
    tensors = [torch.randn(2, 3, 5, 4, requires_grad=True) for _ in range(3)]
    given = [t.detach().to("tpu").requires_grad_() for t in tensors]
    out = torch.compile(function, fullgraph=True, options={"fuse_attention": True})(*given)
    expected = function(*tensors)
    assert_close_to_scale(out, expected, 1e-4, "output")
    out.square().sum().backward()
    expected.square().sum().backward()
    for ours, theirs in zip(given, tensors, strict=True):
        assert ours.grad is not None and theirs.grad is not None
        assert_close_to_scale(ours.grad, theirs.grad, 1e-4, "gradient")


@pytest.mark.usefixtures("no_fallback")
@pytest.mark.parametrize("function", [nano_gpt, added_mask, no_mask])
def test_attention_is_found(fused: list[int], function: Attention) -> None:
    check(function)
    assert fused == [1]


@pytest.mark.parametrize(
    "function", [weights_are_used_twice, other_dimension, scaled_mask, finite_fill, squared]
)
def test_what_is_no_attention_stays(fused: list[int], function: Attention) -> None:
    check(function)
    assert fused == [0]


def test_dropout_draws_what_it_draws_eagerly(fused: list[int]) -> None:
    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.dropout((q @ k.mT).softmax(-1), 0.5) @ v

    q = torch.randn(1, 2, 5, 4, device="tpu")
    compiled = torch.compile(function, fullgraph=True, options={"fuse_attention": True})
    torch.manual_seed(5)
    ours = compiled(q, q, q)
    torch.manual_seed(5)
    torch.testing.assert_close(ours, function(q, q, q), rtol=1e-4, atol=1e-5)
    assert fused == [0]
