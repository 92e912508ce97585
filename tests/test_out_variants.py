"""out= arguments, and the strides results get without one."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from compare import assert_same

Op = Callable[..., torch.Tensor]

OPS: dict[str, tuple[Op, torch.dtype]] = {
    "add": (lambda x, out: torch.add(x, 1, out=out), torch.float32),
    "mul": (lambda x, out: torch.mul(x, x, out=out), torch.float32),
    "exp": (lambda x, out: torch.exp(x, out=out), torch.float32),
    "clamp": (lambda x, out: torch.clamp(x, 0, 1, out=out), torch.float32),
    "lt": (lambda x, out: torch.lt(x, 0, out=out), torch.bool),
    "argmax": (lambda x, out: torch.argmax(x, 1, out=out), torch.int64),
    "sum": (lambda x, out: torch.sum(x, 1, out=out), torch.float32),
    "mean": (lambda x, out: torch.mean(x, 0, keepdim=True, out=out), torch.float32),
    "mm": (lambda x, out: torch.mm(x, x.t(), out=out), torch.float32),
    "cat": (lambda x, out: torch.cat([x, x], out=out), torch.float32),
    "stack": (lambda x, out: torch.stack([x, x], out=out), torch.float32),
    "cumsum": (lambda x, out: torch.cumsum(x, 0, out=out), torch.float32),
    "index_select": (
        lambda x, out: torch.index_select(x, 0, torch.tensor([1, 0], device=x.device), out=out),
        torch.float32,
    ),
    "gather": (
        lambda x, out: torch.gather(x, 1, torch.zeros(3, 1).long().to(x.device), out=out),
        torch.float32,
    ),
    "where": (lambda x, out: torch.where(x > 0, x, -x, out=out), torch.float32),
    "tril": (lambda x, out: torch.tril(x, out=out), torch.float32),
    "softmax": (lambda x, out: torch.softmax(x, 1, out=out), torch.float32),
    "nonzero": (lambda x, out: torch.nonzero(x > 0, out=out), torch.int64),
    "masked_select": (lambda x, out: torch.masked_select(x, x > 0, out=out), torch.float32),
    "arange": (lambda x, out: torch.arange(2, 9, 3, out=out), torch.float32),
    "pow": (lambda x, out: torch.pow(2, x, out=out), torch.float32),
    "norm": (lambda x, out: torch.norm(x, dim=1, out=out), torch.float32),
    "all": (lambda x, out: torch.all(x > 0, dim=1, out=out), torch.bool),
    "addmm": (lambda x, out: torch.addmm(x[:, :3], x, x.t(), beta=2, out=out), torch.float32),
}


def run(op: Op, x: torch.Tensor, out: torch.Tensor) -> tuple[torch.Tensor, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = op(x, out)
    assert result is out
    return out, [str(w.message).split(".")[0] for w in caught if "resized" in str(w.message)]


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("start", ["empty", "right size", "wrong size", "not contiguous"])
def test_out(name: str, start: str, device: torch.device) -> None:
    op, dtype = OPS[name]
    x = torch.tensor([[1.0, -2, 3, 0.5], [-1, 4, 2, 7], [3, -5, 1, 2]])

    def fresh(place: torch.device | str) -> torch.Tensor:
        if start == "empty":
            return torch.empty(0, dtype=dtype, device=place)
        if start == "wrong size":
            return torch.ones(1, 5, dtype=dtype, device=place)
        like = op(x, torch.empty(0, dtype=dtype))
        if start == "right size":
            return torch.ones_like(like).to(place)
        wide = torch.zeros(*like.shape, 2, dtype=dtype, device=place)
        return wide[..., 1]

    expected_out, actual_out = fresh("cpu"), fresh(device)
    expected, expected_warnings = run(op, x, expected_out)
    actual, actual_warnings = run(op, x.to(device), actual_out)
    assert_same(
        actual,
        expected,
        rtol=1e-2 if name in {"mm", "addmm"} else None,
        atol=0.5 if name in {"mm", "addmm"} else None,
    )
    if name != "arange":  # which says it in words of its own
        assert actual_warnings == expected_warnings
    if start == "not contiguous":
        assert actual.stride() == expected.stride()
        assert actual_out._base is not None and expected_out._base is not None
        assert_same(actual_out._base, expected_out._base, rtol=1e-2, atol=0.5)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: torch.add(x, 1, out=torch.empty(3, dtype=torch.int64, device=x.device)),
        lambda x: torch.exp(x, out=torch.empty(3, dtype=torch.int64, device=x.device)),
        lambda x: torch.mm(
            x.view(1, 3), x.view(3, 1), out=torch.empty(1, 1, dtype=torch.float64, device=x.device)
        ),
        lambda x: torch.argmax(x, 0, out=torch.empty((), device=x.device)),
        lambda x: torch.cat([x, x], out=torch.empty(6, dtype=torch.int64, device=x.device)),
        lambda x: torch.nonzero(x, out=torch.empty(0, device=x.device)),
        lambda x: torch.add(x, 1, out=torch.empty(1, device=x.device).expand(3)),
        lambda x: torch.add(x, torch.ones(4, device=x.device), out=torch.empty(3, device=x.device)),
    ],
)
def test_wrong_out(call: Callable[[torch.Tensor], object], device: torch.device) -> None:
    x = torch.tensor([1.0, 2, 3])
    with pytest.raises((RuntimeError, TypeError)) as expected:
        call(x)
    with pytest.raises((RuntimeError, TypeError)) as actual:
        call(x.to(device))
    assert actual.type is expected.type


def test_out_on_another_device(device: torch.device) -> None:
    x = torch.ones(3, device=device)
    with pytest.raises(RuntimeError, match="device"):
        torch.add(x, 1, out=torch.empty(3))
    with pytest.raises(RuntimeError, match="device"):
        torch.add(torch.ones(3), 1, out=torch.empty(3, device=device))


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64, torch.bfloat16])
def test_out_of_another_dtype(dtype: torch.dtype, device: torch.device) -> None:
    x = torch.tensor([1.25, -2.5, 3])
    for op in (torch.exp, torch.tanh):
        expected = op(x, out=torch.empty(3, dtype=dtype))
        actual = op(x.to(device), out=torch.empty(3, dtype=dtype, device=device))
        assert_same(actual, expected)
    assert_same(
        torch.add(x.to(device), 2, out=torch.empty(3, dtype=dtype, device=device)),
        torch.add(x, 2, out=torch.empty(3, dtype=dtype)),
    )


def test_out_is_an_input(device: torch.device) -> None:
    x = torch.arange(6.0).view(2, 3)
    y = x.to(device)
    torch.mul(x, x + 1, out=x)
    torch.mul(y, y + 1, out=y)
    assert_same(y, x)
    torch.sub(x[0], x[1], out=x[1])
    torch.sub(y[0], y[1], out=y[1])
    assert_same(y, x)


def test_several_outs(device: torch.device) -> None:
    x = torch.tensor([[1.0, 5, 2], [7, 3, 9]])
    y = x.to(device)
    for call in (
        lambda t, a, b: torch.max(t, 1, out=(a, b)),
        lambda t, a, b: torch.sort(t, 1, out=(a, b)),
        lambda t, a, b: torch.topk(t, 2, 1, out=(a, b)),
        lambda t, a, b: torch.median(t, 1, out=(a, b)),
        lambda t, a, b: torch.cummax(t, 1, out=(a, b)),
    ):
        expected = call(x, torch.empty(0), torch.empty(0, dtype=torch.long))
        actual = call(
            y, torch.empty(0, device=device), torch.empty(0, dtype=torch.long, device=device)
        )
        for got, want in zip(actual, expected, strict=True):
            assert_same(got, want)


# --- Strides without out= -----------------------------------------------------------------------

LAYOUTS: dict[str, Callable[[], torch.Tensor]] = {
    "contiguous": lambda: torch.randn(2, 3, 4, 5),
    "channels last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "permuted": lambda: torch.randn(4, 2, 5, 3).permute(1, 3, 0, 2),
    "sliced": lambda: torch.randn(2, 3, 4, 10)[..., ::2],
    "expanded": lambda: torch.randn(2, 1, 4, 5).expand(2, 3, 4, 5),
    "transposed": lambda: torch.randn(2, 3, 5, 4).transpose(2, 3),
}
STRIDED_OPS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "neg": lambda x: -x,
    "add itself": lambda x: x + x,
    "add contiguous": lambda x: x + torch.ones(2, 3, 4, 5, device=x.device),
    "add to contiguous": lambda x: torch.ones(2, 3, 4, 5, device=x.device) + x,
    "add bias": lambda x: x + torch.ones(3, 1, 1, device=x.device),
    "compare": lambda x: x > 0,
    "where": lambda x: torch.where(x > 0, x, torch.zeros((), device=x.device)),
    "gelu": lambda x: torch.nn.functional.gelu(x),
    "dropout": lambda x: torch.nn.functional.dropout(x, 0.0),
    "clone": lambda x: x.clone(),
    "to dtype": lambda x: x.double(),
    "empty_like": lambda x: torch.zeros_like(x),
    "sum": lambda x: x.sum(1, keepdim=True),
    "softmax": lambda x: x.softmax(1),
    "masked_fill": lambda x: x.masked_fill(x > 0, 1),
    "cat": lambda x: torch.cat([x, x], 1),
    "clamp": lambda x: x.clamp(0),
    "lerp": lambda x: torch.lerp(x, x * 2, 0.5),
    "flip": lambda x: x.flip(1),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", STRIDED_OPS)
def test_strides_of_results(layout: str, name: str, device: torch.device) -> None:
    x = LAYOUTS[layout]()
    moved = torch.empty_strided(x.shape, x.stride(), device=device)
    if layout == "expanded":
        moved = x[:, :1].to(device).expand(2, 3, 4, 5)
    elif layout == "sliced":
        moved = torch.zeros(2, 3, 4, 10, device=device)[..., ::2].copy_(x)
    else:
        moved.copy_(x)
    assert moved.stride() == x.stride()
    assert_same(STRIDED_OPS[name](moved), STRIDED_OPS[name](x))
