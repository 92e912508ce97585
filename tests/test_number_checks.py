"""Numbers that operators refuse, also where the program for other numbers is there."""

from __future__ import annotations

import re
from collections.abc import Callable

import compare
import pytest
import torch
from torch.nn import functional

from torch_tpu.testing.operator_calls import outcome

pytestmark = pytest.mark.usefixtures("no_fallback")

# A call with numbers, numbers that are right, and numbers that are not. (The numbers of
# distributions are in test_random.py.)
Call = Callable[..., torch.Tensor]
FLOATS: dict[str, tuple[Call, tuple[float, ...], list[tuple[float, ...]]]] = {
    "softshrink": (functional.softshrink, (0.3,), [(-0.3,), (1e39,)]),
    "celu": (functional.celu, (0.3,), [(0.0,)]),
    "huber_loss": (lambda x, n: functional.huber_loss(x, x, delta=n), (0.3,), [(0.0,), (-0.3,)]),
    "smooth_l1_loss": (lambda x, n: functional.smooth_l1_loss(x, x, beta=n), (0.3,), [(-0.3,)]),
    "renorm": (lambda x, n: x.renorm(2, 0, n), (3.0,), [(-3.0,)]),
    "histc": (
        lambda x, *n: torch.histc(x, 4, *n),
        (0.5, 2.0),
        [(0.5, float("inf")), (float("nan"), 1.0), (2.0, 0.5)],
    ),
}
BYTES: dict[str, tuple[Call, tuple[float, ...], list[tuple[float, ...]]]] = {
    "clamp": (lambda x, *n: x.clamp(*n), (2, 5), [(-3, 300), (2, 300)]),
    "clamp_": (lambda x, *n: x.clamp_(*n), (2, 5), [(2, 300)]),
    "index_fill": (
        lambda x, n: x.index_fill(0, torch.tensor([1], device=x.device), n),
        (3,),
        [(300,)],
    ),
    "scatter": (
        lambda x, n: x.scatter(0, torch.tensor([[1]], device=x.device), n),
        (3,),
        [(300,)],
    ),
    "pad": (lambda x, n: functional.pad(x, (1, 1), value=n), (3,), [(300,)]),
    "masked_fill": (lambda x, n: x.masked_fill(x > 3, n), (3,), [(300,)]),
}


@pytest.mark.parametrize("name", [*FLOATS, *BYTES])
def test_numbers_are_refused(name: str) -> None:
    call, right, wrong = (FLOATS | BYTES)[name]
    x = torch.arange(12.0).reshape(4, 3).to(torch.float32 if name in FLOATS else torch.uint8)
    compare.assert_same(call(x.to(compare.DEVICE), *right), call(x.clone(), *right))
    for numbers in wrong:
        refused = outcome(lambda numbers=numbers: call(x.clone(), *numbers))  # type: ignore[misc]
        assert isinstance(refused, Exception)
        with pytest.raises(type(refused), match=re.escape(str(refused))):
            call(x.to(compare.DEVICE), *numbers)


def test_limits_of_another_dtype(device: torch.device) -> None:
    """Limits that raise the dtype of the result, and ones that CUDA takes, too."""
    x = torch.ones(2, dtype=torch.uint8)
    compare.assert_same(x.to(device).clamp(-3.5, 300.5), x.clamp(-3.5, 300.5))
    assert torch.ones(2, dtype=torch.float16, device=device).clamp(max=1e9).tolist() == [1, 1]
