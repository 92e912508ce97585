"""Compiled graphs in which PyTorch checks values, after a factorization for example."""

from __future__ import annotations

import pytest
import torch
from compare import assert_same, dispatch_stats

pytestmark = pytest.mark.filterwarnings("ignore::torch_tpu.PerformanceWarning")


def solved(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.linalg.solve(a.relu() + torch.eye(3, device=a.device), b).sin() * 2


def programs() -> int:
    return int(dispatch_stats()["programs"])


def test_a_check_does_not_part_the_program() -> None:
    a, b = torch.rand(3, 3), torch.rand(3, 2)
    compiled = torch.compile(solved, fullgraph=True)
    on_device = a.to("tpu"), b.to("tpu")
    for _ in range(2):
        before = programs()
        actual = compiled(*on_device)
        # The graph, and whether the factorization's outcome is an error.
        assert programs() - before <= 2
        assert_same(actual, solved(a, b), rtol=1e-4, atol=1e-5)


def test_a_check_that_fails_comes_before_the_inputs_are_written() -> None:
    def written(x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        x.copy_(torch.linalg.inv(a))
        return x + 1

    x = torch.ones(3, 3, device="tpu")
    compiled = torch.compile(written, fullgraph=True)
    with pytest.raises(torch.linalg.LinAlgError, match="singular"):
        compiled(x, torch.zeros(3, 3, device="tpu"))
    assert_same(x, torch.ones(3, 3))
    a = torch.eye(3) * 4
    assert_same(compiled(x, a.to("tpu")), torch.eye(3) / 4 + 1)
    assert_same(x, torch.eye(3) / 4)
