"""torch.autocast("tpu") and torch.amp.GradScaler("tpu")."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

DTYPES = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES)
def test_operators_choose_their_dtype(dtype: torch.dtype) -> None:
    x = torch.randn(4, 4, device="tpu")
    low = x.to(dtype)
    with torch.autocast("tpu", dtype=dtype):
        assert torch.is_autocast_enabled("tpu")
        assert torch.get_autocast_dtype("tpu") == dtype
        for lower in (x @ x, F.linear(x, x), torch.bmm(x[None], x[None]), torch.addmm(x, x, x)):
            assert lower.dtype == dtype
        for float32 in (low.exp(), F.layer_norm(low, (4,)), F.mse_loss(low, low), low.pow(2)):
            assert float32.dtype == torch.float32
        for float32 in (low.softmax(0), low.sum(), low.cumsum(0), low.norm(), low.prod()):
            assert float32.dtype == torch.float32
        assert low.sum(dtype=torch.float64).dtype == torch.float64
        assert low.addcmul(x, low).dtype == torch.float32
        assert (low + low).dtype == dtype and (low + x).dtype == torch.float32
        assert low.relu().dtype == dtype
        assert (x.double() @ x.double()).dtype == torch.float64
        with torch.autocast("tpu", enabled=False):
            assert (x @ x).dtype == torch.float32
    assert not torch.is_autocast_enabled("tpu")
    assert (x @ x).dtype == torch.float32


def test_default_dtype_is_bfloat16_on_request_only() -> None:
    x = torch.randn(4, 4, device="tpu")
    with torch.autocast("tpu", dtype=torch.bfloat16):
        assert (x @ x).dtype == torch.bfloat16
        assert (x.cpu() @ x.cpu()).dtype == torch.float32


def test_the_same_choices_as_cpu_autocast() -> None:
    functions: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda x: F.linear(x, x),
        lambda x: F.conv2d(x[None, None], x[None, None]),
        lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]),
        lambda x: torch.matmul(x, x),
        lambda x: torch.einsum("ij,jk->ik", x, x),
        lambda x: torch.baddbmm(x[None], x[None], x[None]),
        lambda x: x * 2 + x,
        lambda x: F.gelu(x),
    ]
    x = torch.randn(4, 4)
    for function in functions:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            expected = function(x)
        with torch.autocast("tpu", dtype=torch.bfloat16):
            actual = function(x.to("tpu"))
        assert actual.dtype == expected.dtype
        torch.testing.assert_close(actual.cpu(), expected, rtol=3e-2, atol=3e-2)


def test_weights_are_cast_once() -> None:
    weight = torch.randn(8, 8, device="tpu", requires_grad=True)
    x = torch.randn(2, 8, device="tpu")
    with torch.autocast("tpu", dtype=torch.bfloat16):
        F.linear(x, weight)
        torch.tpu.reset_dispatch_stats()  # type: ignore[attr-defined]
        F.linear(x, weight)
    # the cast of x and the product
    assert torch.tpu.dispatch_stats()["ops"] <= 3  # type: ignore[attr-defined]


@pytest.mark.parametrize("dtype", DTYPES)
def test_training(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 3)).to("tpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    x = torch.randn(64, 8, device="tpu")
    target = x[:, :3].argmax(1)
    losses = []
    for _ in range(40):
        with torch.autocast("tpu", dtype=dtype):
            output = model(x)
            assert output.dtype == dtype
            loss = F.cross_entropy(output, target)
        assert loss.dtype == torch.float32
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in model.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2


def test_gradients_are_near_full_precision() -> None:
    model = nn.Linear(16, 16).to("tpu")
    x = torch.randn(32, 16, device="tpu")
    exact = torch.autograd.grad(model(x).square().mean(), list(model.parameters()))
    with torch.autocast("tpu", dtype=torch.bfloat16):
        loss = model(x).square().mean()
    for low, full in zip(torch.autograd.grad(loss, list(model.parameters())), exact, strict=True):
        torch.testing.assert_close(low, full, rtol=5e-2, atol=5e-3)


def test_binary_cross_entropy_is_refused() -> None:
    p = torch.rand(4, device="tpu")
    with (
        torch.autocast("tpu", dtype=torch.bfloat16),
        pytest.raises(RuntimeError, match="unsafe to autocast"),
    ):
        F.binary_cross_entropy(p, p)
    F.binary_cross_entropy(p, p)


def test_unsupported_dtype_disables_autocast() -> None:
    with (
        pytest.warns(UserWarning, match="Disabling autocast"),
        torch.autocast("tpu", dtype=torch.float64),
    ):
        assert not torch.is_autocast_enabled("tpu")


def test_custom_function() -> None:
    class Product(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="tpu", cast_inputs=torch.float32)
        def forward(ctx, x):  # type: ignore[no-untyped-def]
            assert not torch.is_autocast_enabled("tpu")
            ctx.save_for_backward(x)
            return x @ x

        @staticmethod
        @torch.amp.custom_bwd(device_type="tpu")
        def backward(ctx, grad):  # type: ignore[no-untyped-def]
            (x,) = ctx.saved_tensors
            return grad @ x.t() + x.t() @ grad

    x = torch.randn(3, 3, device="tpu", dtype=torch.bfloat16, requires_grad=True)
    with torch.autocast("tpu", dtype=torch.bfloat16):
        y = Product.apply(x)
    assert y.dtype == torch.float32
    y.sum().backward()
    assert x.grad is not None and x.grad.dtype == torch.bfloat16


def test_grad_scaler() -> None:
    parameter = torch.ones(4, device="tpu", requires_grad=True)
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    scaler = torch.amp.GradScaler("tpu", init_scale=8.0, growth_interval=2)
    for _ in range(2):
        optimizer.zero_grad()
        scaler.scale((parameter * 0.25).sum()).backward()
        assert parameter.grad is not None and parameter.grad.tolist() == [2.0] * 4
        scaler.unscale_(optimizer)
        assert parameter.grad.tolist() == [0.25] * 4
        scaler.step(optimizer)
        scaler.update()
    assert parameter.tolist() == [0.5] * 4
    assert scaler.get_scale() == 16.0

    optimizer.zero_grad()
    scaler.scale((parameter * float("inf")).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert parameter.tolist() == [0.5] * 4
    assert scaler.get_scale() == 8.0
    other = torch.amp.GradScaler("tpu")
    other.load_state_dict(scaler.state_dict())
    assert other.get_scale() == 8.0
