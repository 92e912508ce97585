"""Softmax and the norms of layers, forward and backward, against the CPU."""

from __future__ import annotations

import copy
import math

import compare
import pytest
import torch
from both_devices import check, data
from torch.nn import functional

pytestmark = pytest.mark.usefixtures("no_fallback")

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
HALVES = (torch.bfloat16, torch.float16)


def tolerance(dtype: torch.dtype) -> float:
    """Statistics in float16 are rounded before the backward on the CPU."""
    return 3e-2 if dtype in HALVES else 1e-4


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3, 4, 5), (7,), (), (0, 4), (2, 1)])
def test_softmax(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = data(*shape, dtype=dtype)
    dims = (0, -1) if shape != (0, 4) else (-1,)
    check(
        lambda x: [f(x, d) for f in (functional.softmax, functional.log_softmax) for d in dims], x
    )
    check(lambda x: functional.softmin(x, -1), x)


def test_softmax_in_another_dtype() -> None:
    x = data(4, 5, dtype=torch.bfloat16)
    check(
        lambda x: [
            functional.softmax(x, -1, dtype=torch.float32),
            functional.log_softmax(x, 0, dtype=torch.float32),
        ],
        x,
    )


def test_softmax_of_extremes() -> None:
    x = torch.tensor([[1e30, 0.0, -1e30], [-math.inf, 1.0, 2.0], [500.0, 501.0, 499.0]])
    check(lambda x: [functional.softmax(x, -1), functional.log_softmax(x, -1)], x, backward=False)
    x[1] = -math.inf
    check(lambda x: torch.ops.aten._safe_softmax(x, -1), x, backward=False)
    check(lambda x: functional.softmax(x, -1), x, backward=False)


@pytest.mark.parametrize("mask_type", [0, 1])
def test_masked_softmax(mask_type: int) -> None:
    mask = torch.rand(4, 4) < 0.4
    mask[:, 0] = False
    check(
        lambda x, m: torch._masked_softmax(x, m, 3, mask_type),
        data(4, 2, 4, 4),
        mask,
        backward=False,
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_layer_norm(dtype: torch.dtype) -> None:
    x, weight, bias = (
        data(2, 3, 4, 5, dtype=dtype),
        data(4, 5, dtype=dtype),
        data(4, 5, dtype=dtype),
    )
    near = tolerance(dtype)
    check(lambda x, w, b: functional.layer_norm(x, (4, 5), w, b), x, weight, bias, tolerance=near)
    check(lambda x, w: functional.layer_norm(x, (5,), w[0]), x, weight, tolerance=near)
    check(lambda x: functional.layer_norm(x, (3, 4, 5), eps=1e-3), x, tolerance=near)


def test_layer_norm_of_nothing() -> None:
    check(lambda x, w: functional.layer_norm(x, (5,), w), data(0, 5), data(5))


def test_layer_norm_needs_some_gradients_only() -> None:
    def run(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        weight = w.detach().requires_grad_()
        y = functional.layer_norm(x.detach(), (5,), weight, torch.zeros_like(weight.detach()))
        return torch.autograd.grad(y.square().sum(), weight)[0]

    check(run, data(3, 5), data(5), backward=False)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm(dtype: torch.dtype) -> None:
    x, weight = data(2, 3, 5, dtype=dtype), data(5, dtype=dtype)
    check(lambda x, w: functional.rms_norm(x, (5,), w), x, weight, tolerance=tolerance(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("groups", [1, 2, 6])
def test_group_norm(dtype: torch.dtype, groups: int) -> None:
    x, weight, bias = data(2, 6, 4, 5, dtype=dtype), data(6, dtype=dtype), data(6, dtype=dtype)
    near = tolerance(dtype)
    check(lambda x, w, b: functional.group_norm(x, groups, w, b), x, weight, bias, tolerance=near)
    check(lambda x: functional.group_norm(x, groups), x, tolerance=near)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 5), (4, 3, 5, 2), (2, 3, 2, 3, 2)])
def test_batch_norm(shape: tuple[int, ...], training: bool, dtype: torch.dtype) -> None:
    mean, var = data(3, dtype=dtype), torch.rand(3).to(dtype) + 0.5
    weight, bias = data(3, dtype=dtype), data(3, dtype=dtype)

    def run(
        x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, m: torch.Tensor, v: torch.Tensor
    ) -> list[torch.Tensor]:
        m, v = m.detach().clone(), v.detach().clone()
        y = functional.batch_norm(x, m, v, w, b, training)
        return [y, m, v]

    x = data(*shape, dtype=dtype)
    check(run, x, weight, bias, mean, var, tolerance=tolerance(dtype))


def test_batch_norm_without_parameters_or_statistics() -> None:
    x = data(4, 3, 5)
    check(lambda x: functional.batch_norm(x, None, None, training=True), x, tolerance=1e-4)
    check(
        lambda x, w: functional.batch_norm(x, None, None, w, training=True),
        x,
        data(3),
        tolerance=1e-4,
    )
    check(lambda x: functional.instance_norm(x), x, tolerance=1e-4)


def test_batch_norm_module_learns_statistics() -> None:
    module = torch.nn.BatchNorm2d(3)
    other = copy.deepcopy(module).to(compare.DEVICE)
    for _ in range(3):
        x = data(4, 3, 5, 5)
        compare.assert_same(other(x.to(compare.DEVICE)), module(x), rtol=1e-4, atol=1e-5)
    module.eval()
    other.eval()
    x = data(2, 3, 5, 5)
    compare.assert_same(other(x.to(compare.DEVICE)), module(x), rtol=1e-4, atol=1e-5)
    for name, value in module.named_buffers():
        compare.assert_same(dict(other.named_buffers())[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["_native_batch_norm_legit", "_native_batch_norm_legit.no_stats"])
def test_other_spellings_of_batch_norm(name: str) -> None:
    x, w, b = data(4, 3, 5), data(3), data(3)
    op = torch.ops.aten._native_batch_norm_legit

    def run(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
        if name.endswith("no_stats"):
            return list(op.no_stats(x, w, b, True, 0.1, 1e-5))
        m, v = torch.zeros_like(w), torch.ones_like(w)
        return [*op(x, w, b, m, v, True, 0.1, 1e-5), m, v]

    check(run, x, w, b, backward=False, tolerance=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dim", [0, 2])
def test_weight_norm(dim: int, dtype: torch.dtype) -> None:
    shape = (4, 1, 1) if dim == 0 else (1, 1, 5)
    check(
        lambda v, g: torch._weight_norm(v, g, dim),
        data(4, 3, 5, dtype=dtype),
        data(*shape, dtype=dtype),
        tolerance=1e-4,
    )
