"""Lists of tensors in one program: `_foreach_*`, optimizers and the gradient scaler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import compare
import pytest
import torch
from both_devices import check, data

pytestmark = pytest.mark.usefixtures("no_fallback")

SHAPES = [(3, 4), (5,), (), (2, 0)]
Tensors = list[torch.Tensor]


def tensors(dtype: torch.dtype = torch.float32, positive: bool = False) -> Tensors:
    """One tensor of each shape."""
    values = [data(*shape, dtype=dtype) for shape in SHAPES]
    return [v.abs() * 0.3 + 0.1 for v in values] if positive else values


def words(text: str) -> list[str]:
    """The words of a text."""
    return text.split()


UNARY = words(
    "abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 "
    "neg round rsqrt sign sigmoid sin sinh reciprocal sqrt tan tanh trunc"
)


@pytest.mark.parametrize("op", UNARY)
def test_unary(op: str) -> None:
    def run(*x: torch.Tensor) -> Tensors:
        changed = [v.clone() for v in x]
        getattr(torch, f"_foreach_{op}_")(changed)
        return [*getattr(torch, f"_foreach_{op}")(list(x)), *changed]

    check(run, *tensors(positive=True), backward=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
@pytest.mark.parametrize("op", words("add sub mul div maximum minimum clamp_min clamp_max"))
def test_binary(op: str, dtype: torch.dtype) -> None:
    def run(x: Tensors, y: Tensors) -> Tensors:
        function = getattr(torch, f"_foreach_{op}")
        results = [*function(x, y), *function(x, 2), *function(x, [1, 2, 3, 4])]
        if op in ("add", "sub"):
            results += function(x, y, alpha=2)
        if op in ("add", "mul", "div"):
            results += function(x, y[2])
        if dtype.is_floating_point:
            in_place = [v.clone() for v in x]
            getattr(torch, f"_foreach_{op}_")(in_place, 1.7)
            results += in_place
        return results

    second = [torch.where(v == 0, 1, v) for v in tensors(dtype)]
    check(run, tensors(dtype), second, backward=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("op", ["addcmul", "addcdiv"])
def test_ternary(op: str, dtype: torch.dtype) -> None:
    def run(x: Tensors, y: Tensors, z: Tensors) -> Tensors:
        function = getattr(torch, f"_foreach_{op}")
        changed = [v.clone() for v in x]
        getattr(torch, f"_foreach_{op}_")(changed, y, z, -0.3)
        lists = function(x, y, z, [1.0, 2.0, 0.3, 0.4])
        return [*function(x, y, z), *lists, *changed]

    check(run, tensors(dtype), tensors(dtype), tensors(dtype, True), backward=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_others(dtype: torch.dtype) -> None:
    def run(x: Tensors, y: Tensors) -> Tensors:
        copies = [torch.empty_like(v, dtype=torch.float32) for v in x]
        torch._foreach_copy_(copies, x)
        zeros = [v.clone() for v in x]
        torch._foreach_zero_(zeros)
        return [
            *copies,
            *zeros,
            *torch._foreach_lerp(x, y, 0.3),
            *torch._foreach_lerp(x, y, y),
            *torch._foreach_lerp(x, y, [0.1, 0.6, 0.7, 1.0]),
            *torch._foreach_pow(y, 2),
            *torch._foreach_pow(y, x),
            *torch._foreach_pow(y, [1, 2, 3.5, 4.0]),
            *torch._foreach_pow(2.0, x),
            *torch._foreach_norm(x),
            *torch._foreach_norm(x, 1),
            *torch._foreach_norm(x[:3], float("inf")),
            *torch._foreach_max(x[:3]),
        ]

    check(run, tensors(dtype), tensors(dtype, True), backward=False)


def test_numbers_do_not_compile_again() -> None:
    x = [v.to(compare.DEVICE) for v in tensors()]
    torch._foreach_mul_(x, 1.5)
    before = compare.dispatch_stats()
    torch._foreach_mul_(x, 1.25)
    after = compare.dispatch_stats()
    assert all(after[key] == before[key] for key in ("compiles", "loads"))


Optimizer = Callable[..., torch.optim.Optimizer]
OPTIMIZERS: dict[str, tuple[Optimizer, dict[str, Any]]] = {
    "adam": (torch.optim.Adam, {}),
    "adam decay": (torch.optim.Adam, {"weight_decay": 0.1, "lr": 0.01}),
    "adam amsgrad": (torch.optim.Adam, {"amsgrad": True, "maximize": True}),
    "adamw": (torch.optim.AdamW, {}),
    "adamw amsgrad": (torch.optim.AdamW, {"amsgrad": True, "weight_decay": 0.3}),
    "sgd": (torch.optim.SGD, {"lr": 0.1}),
    "sgd momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}),
    "sgd damped": (torch.optim.SGD, {"momentum": 0.9, "dampening": 0.1, "maximize": True}),
    "sgd nesterov": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
    "adagrad": (torch.optim.Adagrad, {"lr_decay": 0.1, "weight_decay": 0.1}),
    "rmsprop": (torch.optim.RMSprop, {"momentum": 0.5, "centered": True}),
    "adamax": (torch.optim.Adamax, {}),
    "nadam": (torch.optim.NAdam, {}),
    "radam": (torch.optim.RAdam, {}),
    "adadelta": (torch.optim.Adadelta, {}),
    "rprop": (torch.optim.Rprop, {}),
    "asgd": (torch.optim.ASGD, {}),
}
FUSED = [name for name in OPTIMIZERS if name.split()[0] in ("adam", "adamw", "sgd", "adagrad")]


def train(
    name: str, device: str, dtype: torch.dtype, gradients: list[Tensors], **extra: Any
) -> Tensors:
    """Parameters and optimizer state after one step with each list of gradients."""
    generator = torch.Generator().manual_seed(1)
    start = [torch.randn(shape, generator=generator, dtype=dtype) for shape in SHAPES[:3]]
    parameters = [torch.nn.Parameter(p.to(device)) for p in start]
    make, options = OPTIMIZERS[name]
    optimizer = make(parameters, **options, **extra)
    for step in gradients:
        for parameter, gradient in zip(parameters, step, strict=True):
            parameter.grad = gradient.to(device)
        optimizer.step()
    results = [p.detach() for p in parameters]
    for state in optimizer.state.values():
        results += [v for v in state.values() if isinstance(v, torch.Tensor) and v.dim()]
    return results


def compare_training(name: str, dtype: torch.dtype, **extra: Any) -> None:
    """Trains on both devices with the same gradients."""
    gradients = [[data(*shape, dtype=dtype) for shape in SHAPES[:3]] for _ in range(3)]
    actual = train(name, compare.DEVICE, dtype, gradients, **extra)
    expected = train(name, "cpu", dtype, gradients, **extra)
    tolerance = 1e-2 if dtype is torch.bfloat16 else 1e-5
    for index, (got, wanted) in enumerate(zip(actual, expected, strict=True)):
        compare.assert_same(got, wanted, rtol=tolerance, atol=tolerance, what=f"value {index}")


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_foreach_optimizer(name: str) -> None:
    compare_training(name, torch.float32, foreach=True)


@pytest.mark.parametrize("name", FUSED)
def test_fused_optimizer(name: str) -> None:
    compare_training(name, torch.float32, fused=True)


@pytest.mark.parametrize("way", [{}, {"foreach": True}, {"fused": True}], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_adamw(dtype: torch.dtype, way: dict[str, bool]) -> None:
    compare_training("adamw", dtype, **way)


def scaled_training(device: str, **options: Any) -> Tensors:
    """Three steps with a gradient scaler; the second overflows."""
    generator = torch.Generator().manual_seed(1)
    parameter = torch.nn.Parameter(torch.randn(3, 4, generator=generator).to(device))
    optimizer = torch.optim.AdamW([parameter], lr=0.1, **options)
    scaler = torch.amp.GradScaler(device, init_scale=16.0, growth_interval=1)
    scales = []
    for step in range(3):
        optimizer.zero_grad()
        factor = float("inf") if step == 1 else 0.5 + step
        scaler.scale((parameter * parameter).sum() * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    assert scales == [32.0, 16.0, 32.0]
    return [parameter.detach(), optimizer.state[parameter]["exp_avg_sq"]]


@pytest.mark.parametrize("way", [{}, {"foreach": True}, {"fused": True}], ids=str)
def test_gradient_scaler(way: dict[str, bool]) -> None:
    actual, expected = scaled_training(compare.DEVICE, **way), scaled_training("cpu", **way)
    for got, wanted in zip(actual, expected, strict=True):
        compare.assert_same(got, wanted, rtol=1e-5, atol=1e-6)


def test_clip_grad_norm() -> None:
    def run(*x: torch.Tensor) -> Tensors:
        parameters = [torch.nn.Parameter(v.detach()) for v in x]
        for p, v in zip(parameters, x, strict=True):
            p.grad = v.detach().clone()
        norm = torch.nn.utils.clip_grad_norm_(parameters, 0.5, foreach=True)
        torch.nn.utils.clip_grad_value_(parameters, 0.1, foreach=True)
        return [norm, *(p.grad for p in parameters if p.grad is not None)]

    check(run, *tensors()[:3], backward=False)
