"""Operators that PyTorch cannot trace for the device without help: what their results are like."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from compare import assert_same, dispatch_stats
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode


def compiled(function: Callable[..., Any], *args: torch.Tensor) -> Any:
    torch.compiler.reset()
    return torch.compile(function, fullgraph=True)(*(a.to("tpu") for a in args))


@pytest.mark.parametrize(
    ("a", "b", "grouped"),
    [((12, 16), (3, 16, 8), True), ((5, 12), (12, 8), True), ((3, 4, 16), (3, 16, 8), False)],
    ids=["rows", "contraction", "batches"],
)
def test_grouped_mm(a: tuple[int, ...], b: tuple[int, ...], grouped: bool) -> None:
    """In float32, which PyTorch's fake kernel refuses for devices."""
    operands = [torch.randn(a), torch.randn(b)]
    if grouped:
        operands.append(torch.tensor([3, 4, 12], dtype=torch.int32))

    def product(a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor | None = None) -> Any:
        return torch.nn.functional.grouped_mm(a, b, offs=offs)

    assert_same(compiled(product, *operands), product(*operands), rtol=1e-5, atol=1e-5)


def test_nothing_is_compiled_to_find_out_a_shape() -> None:
    x = torch.randn(7, 6, device="tpu")
    before = dispatch_stats()
    mode = FakeTensorMode()
    with mode:
        a, tau = torch.geqrf(mode.from_tensor(x))
    after = dispatch_stats()
    for result, shape in ((a, (7, 6)), (tau, (6,))):
        assert isinstance(result, FakeTensor)
        assert result.shape == shape and result.device == x.device
    assert after["compiles"] + after["loads"] == before["compiles"] + before["loads"]


def test_other_devices_are_left_to_pytorch() -> None:
    mode = FakeTensorMode()
    with mode:
        result = torch.geqrf(mode.from_tensor(torch.randn(7, 6)))
    assert result.a.device.type == "cpu"
