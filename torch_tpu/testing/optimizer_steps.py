"""The suite "optimizers": ten steps of every optimizer, against a plain loop on the CPU."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from torch_tpu.testing import databases
from torch_tpu.testing.cases import Case, Options, Result
from torch_tpu.testing.operator_calls import Arguments, Checker

STEPS = 10
VARIANTS = ("single", "foreach", "fused", "capturable", "schedulers")
# The CPU has the reference: one parameter after the other, nothing kept on a device.
_REFERENCE = {"foreach": False, "fused": False, "capturable": False}


# Divisions by what starts near zero, or a path that depends on the last digits: in float32, two
# machines part within ten steps. PyTorch compares its own implementations in float64.
_AMPLIFYING = {"Adagrad", "Adamax", "LBFGS", "RMSprop"}
# State that is on the CPU unless the optimizer is capturable.
_ON_HOST = ("step", "mu_product")


def _applies(info: Any, variant: str) -> bool:
    if variant in ("foreach", "fused"):
        return variant in info.supported_impls
    return variant != "capturable" or bool(info.has_capturable_arg)


def cases() -> Iterator[Case]:
    """Every optimizer in each of the ways it can work."""
    for variant in VARIANTS:
        for name, info in databases.optimizers().items():
            if _applies(info, variant):
                dtype = "float64" if name in _AMPLIFYING else "float32"
                yield Case("optimizers", name, variant, dtype)


def parameters(info: Any, dtype: torch.dtype, complex_one: bool) -> list[torch.Tensor]:
    """Parameters of a small model: matrices, and what else the optimizer takes."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(7, 5), (3, 7)] if info.name == "Muon" else [(7, 5), (7,), (3, 7), ()]
    made = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    if complex_one:
        numbers = torch.randn((3, 3, 2), generator=generator).to(dtype)
        made.append(torch.view_as_complex(numbers))
    return [tensor.requires_grad_() for tensor in made]


def convex_loss(weights: list[torch.Tensor]) -> torch.Tensor:
    """A loss with one minimum, for an optimizer whose path to one of many is arbitrary."""
    parts = [(1 + 0.1 * i) * (w - 0.3 * i).abs().square().sum() for i, w in enumerate(weights)]
    return torch.stack(parts).sum()


def loss_of(weights: list[torch.Tensor], data: torch.Tensor) -> torch.Tensor:
    """A loss every parameter has a part in."""
    hidden, total = data, data.new_zeros(())
    for weight in weights:
        if weight.is_complex():
            total = total + (weight @ weight.mH).abs().sum()
        elif weight.ndim == 2:
            hidden = torch.tanh(hidden @ weight.T)
        elif weight.ndim == 1:
            hidden = hidden + weight
        else:
            total = total + (weight - 1.5) ** 2
    return total + ((hidden - 0.3) ** 2).sum()


def train(
    info: Any,
    settings: dict[str, Any],
    schedulers: list[Callable[[Any], Any]],
    arguments: Arguments,
) -> dict[str, Any]:
    """The parameters, the losses and the optimizer's state after some steps."""
    weights, data = arguments.input, arguments.args[0]
    wanted = dict(arguments.kwargs)
    if data.device.type == "cpu":
        known = info.optim_cls.__init__.__code__.co_varnames
        wanted.update({name: value for name, value in _REFERENCE.items() if name in known})
    else:
        wanted.update(settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        optimizer = info.optim_cls(weights, **wanted)
        plans = [make(optimizer) for make in schedulers]
        losses = []

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = convex_loss(weights) if info.name == "LBFGS" else loss_of(weights, data)
            loss.backward()
            if info.only_supports_sparse_grads:
                for weight in weights:
                    assert weight.grad is not None
                    weight.grad = weight.grad.to_sparse()
            return loss

        for _ in range(STEPS):
            loss = closure() if not info.step_requires_closure else None
            if info.step_requires_closure:
                loss = optimizer.step(closure)
            else:
                optimizer.step()
            assert loss is not None
            losses.append(loss.detach())
            for plan in plans:
                plan.step(loss.item()) if isinstance(plan, ReduceLROnPlateau) else plan.step()
    states = [optimizer.state[weight] for weight in weights]
    return {
        "parameters": [weight.detach() for weight in weights],
        "losses": losses,
        "state": [
            {
                name: value.detach()
                for name, value in state.items()
                if isinstance(value, torch.Tensor) and name not in _ON_HOST
            }
            for state in states
        ],
        "numbers": [float(state[name]) for state in states for name in _ON_HOST if name in state],
        "rates": [float(group["lr"]) for group in optimizer.param_groups],
    }


def run(case: Case, options: Options) -> Result:
    """Runs a case."""
    info = databases.optimizers()[case.op]
    checker = Checker(case, info, options)
    # Asked for as for CUDA, the database also gives what only accelerators can do.
    configurations = info.optim_inputs_func(device="cuda")
    settings: dict[str, Any] = {}
    for name in ("foreach", "fused"):
        if name in info.supported_impls:
            settings[name] = case.variant == name
    schedules: list[list[Callable[[Any], Any]]] = [[]]
    if case.variant == "schedulers":
        configurations, schedules = configurations[:1], [list(s) for s in info.scheduler_inputs]
    elif case.variant == "capturable":
        configurations = [c for c in configurations if c.kwargs.get("capturable")]
    else:
        configurations = [c for c in configurations if not c.kwargs.get("capturable")]
    data = torch.randn((4, 5), generator=torch.Generator().manual_seed(1)).to(checker.dtype)
    complex_too = info.supports_complex and case.variant in ("single", "foreach")
    for configuration in checker.some_of(configurations):
        for schedule in schedules:
            for complex_one in (False, True) if complex_too else (False,):
                arguments = Arguments(
                    parameters(info, checker.dtype, complex_one),
                    (data,),
                    dict(configuration.kwargs),
                )
                checker.check(
                    arguments,
                    functools.partial(train, info, settings, schedule),
                    requires_grad=True,
                )
    return checker.finish()
