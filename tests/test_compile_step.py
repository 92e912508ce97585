"""torch.tpu.compile_step: an unmodified training step is one program, with the same results."""

from __future__ import annotations

import argparse
import collections
import contextlib
import copy
import gc
import inspect
import queue
import random
import re
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import subprocess_python
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

import torch_tpu._C as C
from torch_tpu import tpu
from torch_tpu.tpu import CompiledStep, compile_step, optimizers

DEVICE = torch.device("tpu")
STEPS = 10
Step = Callable[..., Any]

pytestmark = pytest.mark.filterwarnings("error:torch.tpu.compile_step")


def seeded_data(count: int, rows: int = 4) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        yield (
            torch.randn(rows, 5, generator=generator),
            torch.randn(rows, 3, generator=generator),
        )


def small_model(device: str | torch.device, bias: bool = True) -> nn.Sequential:
    torch.manual_seed(0)
    layers = (nn.Linear(5, 7, bias=bias), nn.Tanh(), nn.Linear(7, 3, bias=bias))
    return nn.Sequential(*layers).to(device)


def plain_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    return step


class Pair:
    """The same model and step on the CPU, eagerly, and on the device, compiled."""

    def __init__(
        self,
        make_model: Callable[[Any], nn.Module] = small_model,
        make_optimizer: Callable[[Any], torch.optim.Optimizer] = lambda p: torch.optim.AdamW(
            p, lr=0.01
        ),
        make_step: Callable[[nn.Module, torch.optim.Optimizer], Step] = plain_step,
        **options: Any,
    ) -> None:
        self.cpu, self.tpu = make_model("cpu"), make_model(DEVICE)
        self.cpu_optimizer = make_optimizer(self.cpu.parameters())
        self.tpu_optimizer = make_optimizer(self.tpu.parameters())
        self.cpu_step = make_step(self.cpu, self.cpu_optimizer)
        self.tpu_step: CompiledStep = compile_step(
            make_step(self.tpu, self.tpu_optimizer), **options
        )

    def run(self, steps: int = 4, rows: int = 4) -> None:
        for x, y in seeded_data(steps, rows):
            expected = self.cpu_step(x, y)
            found = self.tpu_step(x.to(DEVICE), y.to(DEVICE))
            torch.testing.assert_close(found.cpu(), expected.detach(), rtol=1e-5, atol=2e-6)

    def check(self, atol: float = 2e-6) -> None:
        mine, wanted = self.tpu.state_dict(), self.cpu.state_dict()
        for name, value in wanted.items():
            torch.testing.assert_close(mine[name].cpu(), value, rtol=1e-4, atol=atol)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"accumulate": 0}, ValueError, "expected accumulate >= 1, got 0"),
        ({"accumulate": 2.5}, TypeError, "expected accumulate to be an int, got 2.5"),
        ({"max_programs": 0}, ValueError, "expected max_programs >= 1, got 0"),
        ({"options": "fast"}, TypeError, "expected options as a dict of names and values, got str"),
        ({"schedulers": [3]}, TypeError, "expected schedulers to be those of"),
    ],
)
def test_wrong_settings(settings: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=rf"torch\.tpu\.compile_step: {message}"):
        compile_step(lambda: None, **settings)


def test_options() -> None:
    """XLA's flags; what is neither that nor one of ours is an error that says so."""
    with pytest.raises(ValueError, match=r"compile_step: there is no option 'fast'"):
        compile_step(lambda: None, options={"fast": True})
    with pytest.raises(ValueError, match=r"'fuse_attention' is an option of torch.compile"):
        compile_step(lambda: None, options={"fuse_attention": True})
    if tpu.get_platform_name() != "cpu":
        return  # the flag below is the CPU compiler's
    pair = Pair(options={"xla_cpu_enable_fast_math": False})
    pair.run()
    pair.check()
    one_program(pair.tpu_step)
    refused = Pair(options={"xla_no_such_flag": 1})
    with pytest.raises(RuntimeError, match="refuses the option xla_no_such_flag"):
        refused.run()


def test_explanation() -> None:
    """What a program is made for, and what has changed when there is another."""
    pair = Pair(make_optimizer=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9))

    def programs(rows: int = 4) -> list[Any]:
        with tpu.explain() as explanation:
            pair.run(1, rows)
        return [p for p in explanation.programs if "compile_step" in p.calls[0]]

    (first,), (again,) = programs(), programs()
    assert not first.known and first.difference == ""
    assert again.known
    (shapes,) = programs(rows=6)
    assert shapes.difference == "its arguments: tensor 0 is float32[6, 5], was float32[4, 5]"
    assert not shapes.known
    for optimizer in (pair.cpu_optimizer, pair.tpu_optimizer):
        optimizer.param_groups[0]["nesterov"] = True
    (setting,) = programs()
    assert not setting.known and setting.difference == "nesterov is True, was False"


def one_program(step: CompiledStep) -> None:
    assert step.fallback_reason is None
    assert step.num_programs == 1


OPTIMIZERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "Adam": (torch.optim.Adam, {}),
    "Adam single": (torch.optim.Adam, {"foreach": False, "amsgrad": True, "weight_decay": 0.1}),
    "Adam fused": (torch.optim.Adam, {"fused": True}),
    "AdamW": (torch.optim.AdamW, {"amsgrad": True}),
    "SGD": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    "SGD single": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "foreach": False}),
    "SGD fused": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "fused": True}),
    "RMSprop": (torch.optim.RMSprop, {"momentum": 0.9, "centered": True}),
    "Adagrad": (torch.optim.Adagrad, {"lr_decay": 0.1}),
    "Adagrad single": (torch.optim.Adagrad, {"lr_decay": 0.1, "foreach": False}),
    "Adadelta": (torch.optim.Adadelta, {}),
    "NAdam": (torch.optim.NAdam, {"decoupled_weight_decay": True, "weight_decay": 0.1}),
    "RAdam": (torch.optim.RAdam, {}),
    "Adamax": (torch.optim.Adamax, {}),
    "ASGD": (torch.optim.ASGD, {}),
    "Rprop": (torch.optim.Rprop, {}),
    "Adafactor": (torch.optim.Adafactor, {"weight_decay": 0.1}),
    "Adafactor foreach": (torch.optim.Adafactor, {"foreach": True}),
    "Muon": (torch.optim.Muon, {}),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name: str) -> None:
    """Ten steps, the rate falling from one to the next, are one program and equal eager's."""
    kind, settings = OPTIMIZERS[name]

    def stepper(model: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
        step = plain_step(model, optimizer)
        plan = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

        def step_and_plan(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            loss: torch.Tensor = step(x, y)
            plan.step()
            return loss

        return step_and_plan

    pair = Pair(
        lambda device: small_model(device, bias=name != "Muon"),
        lambda parameters: kind(parameters, **settings),
        stepper,
    )
    pair.run(STEPS)
    # Muon works in bfloat16.
    pair.check(atol=2e-4 if name == "Muon" else 5e-6)
    one_program(pair.tpu_step)
    mine, wanted = pair.tpu_optimizer.param_groups, pair.cpu_optimizer.param_groups
    assert mine[0]["lr"] == wanted[0]["lr"]


CYCLED: dict[str, tuple[str, dict[str, Any]]] = {
    "SGD": ("SGD", {"max_lr": 0.1}),
    "SGD single": ("SGD single", {"max_lr": 0.1}),
    "SGD fused": ("SGD fused", {"max_lr": 0.1}),
    "Adam": ("Adam", {"max_lr": 0.01}),
    "Adam single": ("Adam single", {"max_lr": 0.01}),
    "Adam fused": ("Adam fused", {"max_lr": 0.01}),
    "RMSprop": ("RMSprop", {"max_lr": 0.01}),
    "NAdam": ("NAdam", {"max_lr": 0.01}),
}


@pytest.mark.parametrize("name", CYCLED)
def test_one_cycle(name: str) -> None:
    """The momentum or the betas change at every call, and are operands of the one program."""
    label, arguments = CYCLED[name]
    kind, settings = OPTIMIZERS[label]

    def stepper(model: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
        step = plain_step(model, optimizer)
        plan = torch.optim.lr_scheduler.OneCycleLR(optimizer, total_steps=STEPS + 2, **arguments)

        def step_and_plan(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            loss: torch.Tensor = step(x, y)
            plan.step()
            return loss

        return step_and_plan

    pair = Pair(small_model, lambda parameters: kind(parameters, **settings), stepper)
    pair.run(STEPS)
    pair.check(atol=5e-6)
    one_program(pair.tpu_step)
    for key in ("lr", "momentum", "betas"):
        mine, wanted = (
            o.param_groups[0].get(key) for o in (pair.tpu_optimizer, pair.cpu_optimizer)
        )
        assert mine == wanted


@pytest.mark.parametrize("name", ["SGD", "Adam single", "AdamW"])
def test_settings_that_change(name: str) -> None:
    """Others from outside as well; whether a weight decay is 0 makes another program.

    That it changes is known from the second value on.
    """
    kind, settings = OPTIMIZERS[name]
    pair = Pair(small_model, lambda parameters: kind(parameters, **settings))
    for i, (x, y) in enumerate(seeded_data(9)):
        for optimizer in (pair.cpu_optimizer, pair.tpu_optimizer):
            optimizer.param_groups[0]["weight_decay"] = 0.0 if i >= 6 else 0.1 / (i + 1)
        expected, found = pair.cpu_step(x, y), pair.tpu_step(x.to(DEVICE), y.to(DEVICE))
        torch.testing.assert_close(found.cpu(), expected.detach(), rtol=1e-5, atol=2e-6)
    pair.check(atol=5e-6)
    assert pair.tpu_step.fallback_reason is None
    assert pair.tpu_step.num_programs == 3


def test_a_setting_that_is_no_operand() -> None:
    """An optimizer that needs a Python number gets a program for each."""

    class Rounded(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            rounds = [round(float(group["momentum"]), 3) for group in self.param_groups]
            assert all(type(number) is float for number in rounds)
            return super().step(closure)

    pair = Pair(small_model, lambda p: Rounded(p, lr=0.1, momentum=0.9))
    for i, (x, y) in enumerate(seeded_data(5)):
        for optimizer in (pair.cpu_optimizer, pair.tpu_optimizer):
            optimizer.param_groups[0]["momentum"] = 0.9 - 0.1 * i
        expected, found = pair.cpu_step(x, y), pair.tpu_step(x.to(DEVICE), y.to(DEVICE))
        torch.testing.assert_close(found.cpu(), expected.detach(), rtol=1e-5, atol=2e-6)
    pair.check()
    assert pair.tpu_step.fallback_reason is None
    assert pair.tpu_step.num_programs == 4


# --- Gradient scalers -----------------------------------------------------------------------------


def scaled_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, clip: bool = True, update: bool = True
) -> tuple[Step, torch.amp.GradScaler]:
    """A step with a scaler, whose scale grows at every second call."""
    device = next(model.parameters()).device.type
    scaler = torch.amp.GradScaler(device, init_scale=8.0, growth_interval=2)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        scaler.scale(loss).backward()
        if clip:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        if update:
            scaler.update()
        return loss

    return step, scaler


def check_scaled(
    step: Any,
    scaler: torch.amp.GradScaler,
    mine: nn.Module,
    cpu_step: Step,
    cpu_scaler: torch.amp.GradScaler,
    wanted: nn.Module,
    batches: Iterable[tuple[torch.Tensor, torch.Tensor]],
) -> None:
    """The step, as one program, does to `mine` and its scaler what the CPU does to `wanted`."""
    for x, y in batches:
        expected, found = cpu_step(x, y), step(x.to(DEVICE), y.to(DEVICE))
        torch.testing.assert_close(
            found.cpu(), expected.detach(), rtol=1e-5, atol=2e-6, equal_nan=True
        )
        assert scaler.get_scale() == cpu_scaler.get_scale()
    for p, q in zip(mine.parameters(), wanted.parameters(), strict=True):
        torch.testing.assert_close(p.cpu(), q, rtol=1e-4, atol=2e-6)
    one_program(step)


def test_scalers_that_do_not_scale() -> None:
    """They have no state; neither one that the step uses nor one it does not use is in the way."""
    elsewhere = torch.amp.GradScaler("cpu", enabled=False)
    mine, wanted = small_model(DEVICE), small_model("cpu")

    def step_of(model: nn.Module, device: torch.device) -> Step:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler(device.type, enabled=False)

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = ((model(x) - y) ** 2).mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            return loss

        return step

    step, cpu_step = compile_step(step_of(mine, DEVICE)), step_of(wanted, torch.device("cpu"))
    for x, y in seeded_data(4):
        found, expected = step(x.to(DEVICE), y.to(DEVICE)), cpu_step(x, y)
        torch.testing.assert_close(found.cpu(), expected.detach(), rtol=1e-5, atol=2e-6)
    one_program(step)
    assert not elsewhere.is_enabled()


@pytest.mark.parametrize(
    ("name", "clip", "infinite"),
    [
        ("SGD single", True, (4, 5)),
        ("AdamW", False, (0, 1, 4)),
        ("Adam single", True, (0, 4)),
        ("Adam fused", False, (4, 5)),
        ("Adam fused", True, (0, 4)),
        ("Adafactor", True, (4,)),
    ],
)
def test_grad_scaler(name: str, clip: bool, infinite: tuple[int, ...]) -> None:
    """Steps whose gradients are infinite are left out, by the program."""
    kind, settings = OPTIMIZERS[name]
    mine, wanted = small_model(DEVICE), small_model("cpu")
    cpu_step, cpu_scaler = scaled_step(wanted, kind(wanted.parameters(), **settings), clip)
    plain, scaler = scaled_step(mine, kind(mine.parameters(), **settings), clip)
    step = compile_step(plain)
    batches = [
        (x * torch.inf if i in infinite else x, y) for i, (x, y) in enumerate(seeded_data(STEPS))
    ]
    check_scaled(step, scaler, mine, cpu_step, cpu_scaler, wanted, batches)
    scaler.load_state_dict({**scaler.state_dict(), "scale": 2.0, "growth_factor": 4.0})
    cpu_scaler.load_state_dict({**cpu_scaler.state_dict(), "scale": 2.0, "growth_factor": 4.0})
    for x, y in seeded_data(3):
        cpu_step(x, y), step(x.to(DEVICE), y.to(DEVICE))
        assert scaler.get_scale() == cpu_scaler.get_scale()
    assert step.num_programs == 2  # for the factor


def test_grad_scaler_of_parts() -> None:
    """The scaler steps once for all parts of a batch."""
    mine, wanted = small_model(DEVICE), small_model("cpu")
    cpu_step, cpu_scaler = scaled_step(wanted, torch.optim.SGD(wanted.parameters(), lr=0.1))
    plain, scaler = scaled_step(mine, torch.optim.SGD(mine.parameters(), lr=0.1))
    step = compile_step(plain, accumulate=2)
    batches = list(seeded_data(6))
    batches[3][0][0] = torch.inf  # of the first part
    check_scaled(step, scaler, mine, cpu_step, cpu_scaler, wanted, batches)


def test_grad_scaler_updated_elsewhere() -> None:
    mine, other = small_model(DEVICE), small_model(DEVICE)
    optimizers_ = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (mine, other)]
    plain, scaler = scaled_step(mine, optimizers_[0], update=False)
    eager, eager_scaler = scaled_step(other, optimizers_[1], update=False)
    step = compile_step(plain)
    for i, (x, y) in enumerate(seeded_data(4)):
        with (
            pytest.warns(UserWarning, match=r"update\(\) is called elsewhere")
            if i == 1
            else (contextlib.nullcontext())
        ):
            found = step(x.to(DEVICE), y.to(DEVICE))
        torch.testing.assert_close(found, eager(x.to(DEVICE), y.to(DEVICE)))
        scaler.update()
        eager_scaler.update()
    torch.testing.assert_close(list(mine.parameters()), list(other.parameters()))
    assert step.fallback_reason is not None


# --- What is not captured -------------------------------------------------------------------------


def test_lbfgs_runs_eagerly() -> None:
    model = small_model(DEVICE)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=2)

    @compile_step
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = ((model(x) - y) ** 2).mean()
            loss.backward()
            return loss

        return optimizer.step(closure)

    (x, y), *_ = [(x.to(DEVICE), y.to(DEVICE)) for x, y in seeded_data(1)]
    first = step(x, y).item()
    with pytest.warns(UserWarning, match="LBFGS decides by the values"):
        second = step(x, y).item()
    assert step(x, y).item() < second < first


@pytest.mark.parametrize("mode", ["DEFER_AND_FUSE", "DEFER_NEVER_AND_LAUNCH_BLOCKING"])
def test_other_modes(mode: str) -> None:
    pair = Pair()
    with tpu.set_eager_mode(tpu.EagerMode[mode]):
        pair.run(4)
    pair.check()
    one_program(pair.tpu_step)


def test_it_is_one_program_with_everything_donated() -> None:
    pair = Pair()
    pair.run(2)
    before = C.statistics()["programs"]
    x, y = (t.to(DEVICE) for t in next(seeded_data(1)))
    C.synchronize(0)
    before = C.statistics()["programs"]
    pair.tpu_step(x, y)
    C.synchronize(0)
    assert C.statistics()["programs"] == before + 1
    program = pair.tpu_step._entries[0].program
    # Four parameters, two averages for each and their step count; the loss.
    assert program.num_donated == 13
    assert program.num_outputs == 14
    assert "stablehlo.dot_general" in pair.tpu_step.text()


def test_a_new_shape_is_another_program() -> None:
    pair = Pair()
    pair.run(3)
    pair.run(2, rows=6)
    pair.run(2)
    pair.check()
    assert pair.tpu_step.num_programs == 2


def test_rate_from_outside() -> None:
    pair = Pair()
    pair.run(2)
    for optimizer in (pair.cpu_optimizer, pair.tpu_optimizer):
        optimizer.param_groups[0]["lr"] = 0.5
    pair.run(2)
    pair.check(1e-5)
    one_program(pair.tpu_step)


def test_schedulers_of_the_step() -> None:
    """`schedulers=` are stepped after each call."""
    model = small_model(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    plan = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
    step = compile_step(plain_step(model, optimizer), schedulers=[plan])
    for x, y in seeded_data(4):
        step(x.to(DEVICE), y.to(DEVICE))
    assert optimizer.param_groups[0]["lr"] == 0.25
    one_program(step)


def test_plateau() -> None:
    """A scheduler that looks at the loss is stepped by the step itself."""

    def stepper(model: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
        step = plain_step(model, optimizer)
        plan = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)

        def step_and_plan(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            loss = step(x, y)
            plan.step(loss.detach())
            return loss

        return step_and_plan

    pair = Pair(make_step=stepper)
    pair.run(8)
    mine, wanted = pair.tpu_optimizer.param_groups, pair.cpu_optimizer.param_groups
    assert mine[0]["lr"] == wanted[0]["lr"] < 0.01
    one_program(pair.tpu_step)


def test_hyperparameters() -> None:
    """A setting that changes makes another program."""
    pair = Pair()
    pair.run(3)
    for optimizer in (pair.cpu_optimizer, pair.tpu_optimizer):
        optimizer.param_groups[0]["weight_decay"] = 0.5
    pair.run(2)
    pair.check()
    assert pair.tpu_step.num_programs == 2


def test_attributes_of_modules() -> None:
    """A number that a module keeps is part of what the program was made for."""

    def make(device: Any) -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(5, 7), nn.LeakyReLU(0.1), nn.Linear(7, 3)).to(device)

    pair = Pair(make)
    pair.run(3)
    for model in (pair.cpu, pair.tpu):
        assert isinstance(model, nn.Sequential) and isinstance(model[1], nn.LeakyReLU)
        model[1].negative_slope = 0.5
    pair.run(2)
    pair.check()
    assert pair.tpu_step.num_programs == 2


def test_frozen_later() -> None:
    pair = Pair()
    pair.run(3)
    for model in (pair.cpu, pair.tpu):
        assert isinstance(model, nn.Sequential)
        model[0].weight.requires_grad_(False)
    pair.run(3)
    pair.check()


class Normalized(nn.Module):
    """Changes buffers, and is another one in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        # A bias before it would have no gradient but rounding errors.
        self.first, self.norm = nn.Linear(5, 7, bias=False), nn.BatchNorm1d(7)
        self.second = nn.Linear(7, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.second(self.norm(self.first(x)))
        return out


def make_normalized(device: str | torch.device) -> nn.Module:
    torch.manual_seed(0)
    return Normalized().to(device)


def test_buffers_and_evaluation() -> None:
    pair = Pair(make_normalized)
    pair.run(4)
    pair.check(1e-5)
    for model in (pair.cpu, pair.tpu):
        model.eval()
    pair.run(2)
    pair.check(2e-5)
    assert pair.tpu_step.num_programs == 2


def test_loaded_state() -> None:
    """State that was loaded into model and optimizer is what the next call begins with."""
    pair = Pair()
    pair.run(3)
    for model in (pair.cpu, pair.tpu):
        model.load_state_dict(small_model("cpu").state_dict())
    saved = pair.cpu_optimizer.state_dict()
    for optimizer in (pair.cpu_optimizer, pair.tpu_optimizer):
        optimizer.load_state_dict(copy.deepcopy(saved))
    pair.run(3)
    pair.check()
    # The one that was made for the state of before would keep it alive.
    assert pair.tpu_step.num_programs == 1


@pytest.mark.parametrize("recompute", [False, True])
def test_dropout(recompute: bool) -> None:
    """The numbers are those that eager draws, other ones at every call; recomputed, the same."""

    def make(compiled: bool) -> tuple[Step, nn.Module]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 64), nn.Dropout(0.5), nn.Linear(64, 3)).to(DEVICE)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            out = checkpoint(model, x, use_reentrant=False) if recompute else model(x)
            loss = ((out + 0.01 * torch.rand_like(out) - y) ** 2).mean()
            loss.backward()
            optimizer.step()
            return loss

        return (compile_step(step) if compiled else step), model

    results = []
    for compiled in (False, True):
        step, model = make(compiled)
        torch.manual_seed(7)
        x, y = (t.to(DEVICE) for t in next(seeded_data(1)))
        losses = [step(x, y).item() for _ in range(5)]
        results.append((losses, [p.detach().cpu() for p in model.parameters()]))
        if compiled:
            assert isinstance(step, CompiledStep)
            one_program(step)
    assert len(set(results[0][0])) == 5
    torch.testing.assert_close(results[1], results[0], rtol=1e-5, atol=1e-6)


def test_recomputed_parts() -> None:
    """What a checkpoint computes again is not merged with what was computed before."""

    def make(recompute: bool) -> CompiledStep:
        model = small_model(DEVICE)

        def step(x: torch.Tensor) -> torch.Tensor:
            out = checkpoint(model, x, use_reentrant=False) if recompute else model(x)
            loss: torch.Tensor = out.square().sum()
            loss.backward()
            return loss

        compiled: CompiledStep = compile_step(step)
        for _ in range(2):
            compiled(torch.ones(4, 5, device=DEVICE))
        one_program(compiled)
        return compiled

    plain, again = make(False).text(), make(True).text()
    for text, times in ((plain, 1), (again, 2)):
        assert text.count("stablehlo.tanh") == times
    assert "optimization_barrier" in again


def test_checks_of_libraries_are_left_out() -> None:
    """Those that ask whether they are compiled, before they look at values."""

    @compile_step
    def step(x: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling() and (x < 0).any():
            raise ValueError
        return x.sqrt()

    for _ in range(3):
        step(torch.ones(4, device=DEVICE))
    one_program(step)


def test_autocast() -> None:
    def make(compiled: bool) -> list[float]:
        model = small_model(DEVICE)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            with torch.autocast("tpu", torch.bfloat16):
                out = model(x)
            assert out.dtype == torch.bfloat16
            loss = ((out.float() - y) ** 2).mean()
            loss.backward()
            optimizer.step()
            return loss

        f: Any = compile_step(step) if compiled else step
        losses = [f(x.to(DEVICE), y.to(DEVICE)).item() for x, y in seeded_data(5)]
        if compiled:
            one_program(f)
        return losses

    torch.testing.assert_close(make(True), make(False), rtol=2e-2, atol=1e-3)


def test_compiled_model_inside() -> None:
    """A model of torch.compile becomes a part of the program."""

    def stepper(model: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
        compiled: Any = torch.compile(model)
        on_device = next(model.parameters()).device.type == "tpu"
        return plain_step(compiled if on_device else model, optimizer)

    pair = Pair(make_step=stepper)
    pair.run(4)
    pair.check()
    one_program(pair.tpu_step)


def test_results_and_arguments() -> None:
    """Results have the step's structure; arguments that are no tensors choose the program."""
    weight = torch.ones(3, device=DEVICE)

    @compile_step
    def step(batch: dict[str, torch.Tensor], scale: float, *, negate: bool = False) -> Any:
        x = batch["x"] * scale
        return {"x": -x if negate else x, "same": batch["x"], "held": weight, "n": x.shape[0]}

    for scale, negate in ((2.0, False), (2.0, False), (3.0, True), (2.0, False)):
        x = torch.randn(4, 3, device=DEVICE)
        out = step({"x": x}, scale, negate=negate)
        torch.testing.assert_close(out["x"], x * (-scale if negate else scale))
        assert out["n"] == 4 and out["held"] is weight
        assert out["same"].untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert step.num_programs == 2


def test_results_are_new_tensors() -> None:
    step = compile_step(lambda x: x + 1)
    a, b, c = (step(torch.full((2,), float(i), device=DEVICE)) for i in range(3))
    assert [t[0].item() for t in (a, b, c)] == [1, 2, 3]
    assert not c.requires_grad


def test_cpu_arguments_are_copied() -> None:
    pair = Pair()
    for x, y in seeded_data(4):
        torch.testing.assert_close(
            pair.tpu_step(x.to(DEVICE), y.to(DEVICE)).cpu(), pair.cpu_step(x, y).detach()
        )
    x, y = next(seeded_data(1))
    torch.testing.assert_close(pair.tpu_step(x, y).cpu(), pair.cpu_step(x, y).detach())
    one_program(pair.tpu_step)


def test_gradients_stay_inside() -> None:
    pair = Pair()
    for _ in range(3):
        pair.run(1)
        assert all(p.grad is None for p in pair.tpu.parameters())


def test_gradients_are_kept() -> None:
    pair = Pair(keep_gradients=True)
    pair.run(4)
    for mine, wanted in zip(pair.tpu.parameters(), pair.cpu.parameters(), strict=True):
        assert mine.grad is not None and wanted.grad is not None
        torch.testing.assert_close(mine.grad.cpu(), wanted.grad, rtol=1e-4, atol=1e-6)
    one_program(pair.tpu_step)


@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("at_end", [True, False])
def test_gradients_cleared(to_none: bool, at_end: bool) -> None:
    def stepper(model: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            if not at_end:
                optimizer.zero_grad(set_to_none=to_none)
            loss = ((model(x) - y) ** 2).mean()
            loss.backward()
            optimizer.step()
            if at_end:
                optimizer.zero_grad(set_to_none=to_none)
            return loss

        return step

    pair = Pair(make_step=stepper)
    pair.run(5)
    pair.check()
    assert pair.tpu_step.fallback_reason is None


@pytest.mark.parametrize("parts", [2, 4])
def test_accumulation(parts: int) -> None:
    """Parts of the batch, one after the other, are as the whole of it."""
    pair = Pair()
    accumulated = compile_step(plain_step(pair.tpu, pair.tpu_optimizer), accumulate=parts)
    pair.tpu_step = accumulated
    pair.run(5, rows=8)
    pair.check(1e-5)
    one_program(accumulated)
    assert ("optimization_barrier" in accumulated.text()) == (parts > 1)


def test_accumulation_needs_a_batch() -> None:
    step = compile_step(lambda x: x.sum(), accumulate=3)
    with pytest.raises(ValueError, match=r"accumulate=3 divides, got one of 4"):
        step(torch.ones(4, device=DEVICE))


def refused(step: CompiledStep, *args: Any, match: str, line: str) -> Any:
    """The second call warns, naming the line, and gives the eager result."""
    source, first = inspect.getsourcelines(step.__wrapped__)  # type: ignore[attr-defined]
    (number,) = [first + i for i, text in enumerate(source) if line in text]
    step(*args)
    with pytest.warns(UserWarning, match=match) as caught:
        result = step(*args)
    assert f"{__file__}:{number}: " in str(caught[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(*args)
    assert step.fallback_reason is not None
    return result


REFUSED = {
    "item": ("loss.item()", "a copy to the host needs values"),
    "print": ("repr(loss)", "needs values"),
    "branch": ("bool(loss > 3)", "a copy to the host needs values"),
    "numpy": ("loss.detach().cpu()", "a copy to the host needs values"),
    "nonzero": ("x.nonzero()", "nonzero needs values"),
    "host": ("loss + batches[0].to(DEVICE).sum()", "takes a tensor on the CPU"),
    "kept": ("kept.append(loss.detach())", "are kept outside"),
    "python": ("random.random()", "Python's module random"),
    "array": ("np.random.rand()", "from NumPy"),
    "seed": ("torch.rand(2, device=x.device)", "the random state is set"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_captured(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said once and why, nothing has happened, and the step runs eagerly."""
    line, reason = REFUSED[what]
    # Another thread might be thought to have set the seed: those of other tests have not.
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    batches = [torch.ones(4, 3)]
    kept: list[torch.Tensor] = []

    def stepper(model: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = ((model(x) - y) ** 2).mean()
            loss.backward()
            optimizer.step()
            if what == "item":
                loss.item()
            if what == "print":
                repr(loss)
            if what == "branch":
                bool(loss > 3)
            if what == "numpy":
                loss.detach().cpu()
            if what == "nonzero":
                x.nonzero()
            if what == "host":
                loss + batches[0].to(DEVICE).sum()
            if what == "kept":
                kept.append(loss.detach())
            if what == "python":
                random.random()
            if what == "array":
                np.random.rand()
            if what == "seed":
                torch.manual_seed(3)
                torch.rand(2, device=x.device)
            return loss

        return step

    model = small_model(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    step = compile_step(stepper(model, optimizer))
    other = small_model(DEVICE)
    other_step = stepper(other, torch.optim.AdamW(other.parameters(), lr=0.01))
    x, y = (t.to(DEVICE) for t in next(seeded_data(1)))
    if what in ("kept", "python", "array"):
        line = "def step"
    refused(step, x, y, match=reason, line=line)
    for _ in range(3):
        other_step(x, y)
    torch.testing.assert_close(list(model.parameters()), list(other.parameters()))
    assert optimizer.param_groups[0]["lr"] == 0.01
    assert not optimizer.param_groups[0]["capturable"]


def test_exceptions_pass() -> None:
    """What the step itself raises is the caller's; everything is as it was."""
    pair = Pair()
    fail: list[bool] = []
    inner = plain_step(pair.tpu, pair.tpu_optimizer)

    @compile_step
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = inner(x, y)
        if fail:
            raise LookupError("no more data")
        return loss

    pair.tpu_step = step
    pair.run(1)
    fail.append(True)
    before = [p.detach().clone() for p in pair.tpu.parameters()]
    x, y = (t.to(DEVICE) for t in next(seeded_data(1, rows=6)))
    with pytest.raises(LookupError):
        step(x, y)
    torch.testing.assert_close(list(pair.tpu.parameters()), before, rtol=0, atol=0)
    fail.clear()
    pair.run(2)
    pair.check()
    one_program(step)


def test_rate_changed_inside() -> None:
    model = small_model(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    inner = plain_step(model, optimizer)

    @compile_step
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.param_groups[0]["lr"] *= 0.5
        loss: torch.Tensor = inner(x, y)
        return loss

    x, y = (t.to(DEVICE) for t in next(seeded_data(1)))
    step(x, y)
    with pytest.warns(UserWarning, match="changes the learning rate itself"):
        step(x, y)
    assert optimizer.param_groups[0]["lr"] == 0.25


class Carrying(nn.Module):
    """Hands a state on from call to call, in an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 5)
        self.state: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.state is None:
            self.state = torch.zeros_like(x)
        hidden = torch.tanh(self.linear(x) + self.state)
        self.state = hidden.detach()
        return hidden[:, :3]


def make_carrying(device: str | torch.device) -> nn.Module:
    torch.manual_seed(0)
    return Carrying().to(device)


def test_state_in_an_attribute() -> None:
    pair = Pair(make_carrying)
    pair.run(5)
    pair.check()
    one_program(pair.tpu_step)
    cpu, tpu = pair.cpu, pair.tpu
    assert isinstance(cpu, Carrying) and isinstance(tpu, Carrying)
    assert cpu.state is not None and tpu.state is not None
    torch.testing.assert_close(tpu.state.cpu(), cpu.state)


def test_two_optimizers() -> None:
    """Generator and discriminator, each with an optimizer of its own."""

    def run(device: Any, compiled: bool) -> list[torch.Tensor]:
        one, two = small_model(device), small_model(device)
        optimizers = [torch.optim.Adam(m.parameters(), lr=0.01) for m in (one, two)]

        def step(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            first = ((one(x) - y) ** 2).mean()
            optimizers[0].zero_grad()
            first.backward()
            optimizers[0].step()
            second = ((two(x) - one(x).detach()) ** 2).mean()
            optimizers[1].zero_grad()
            second.backward()
            optimizers[1].step()
            return first, second

        f: Any = compile_step(step) if compiled else step
        for x, y in seeded_data(4):
            f(x.to(device), y.to(device))
        if compiled:
            one_program(f)
        return [p.detach().cpu() for m in (one, two) for p in m.parameters()]

    torch.testing.assert_close(run(DEVICE, True), run("cpu", False), rtol=1e-4, atol=2e-6)


PROCESS = """
import torch
import torch_tpu._C as C
from torch_tpu.tpu import compile_step
torch.manual_seed(0)
model = torch.nn.Linear(5, 3).to("tpu")
optimizer = torch.optim.AdamW(model.parameters())
@compile_step
def step(x):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss
for _ in range(3):
    step(torch.ones(4, 5, device="tpu")).item()
assert step.num_programs == 1
print(C.statistics()["compiles"])
"""


def test_a_second_process_compiles_nothing(tmp_path: Any) -> None:
    environment: dict[str, Any] = {
        "TORCH_TPU_TIER2_COMPILATION_CACHE": "disabled",
        "TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT": str(tmp_path / "programs"),
    }
    first, second = (int(subprocess_python.run(PROCESS, **environment)) for _ in range(2))
    assert first > 0 and second == 0


@pytest.mark.parametrize("targets", [True, False])
def test_single_trace_trainer(targets: bool) -> None:
    trainer = optimizers.SingleTraceTrainer(small_model(DEVICE), optimizers.AdamW(lr=0.01))
    step = trainer.make_compiled_train_step()
    model = small_model("cpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for x, y in seeded_data(4):
        out = model(x)
        expected = nn.functional.mse_loss(out, y) if targets else out.mean()
        optimizer.zero_grad()
        expected.backward()
        optimizer.step()
        given = (x.to(DEVICE), y.to(DEVICE)) if targets else (x.to(DEVICE),)
        torch.testing.assert_close(step(*given).cpu(), expected.detach())
    mine = [p.detach().cpu() for p in trainer.model.parameters()]
    torch.testing.assert_close(mine, [p.detach() for p in model.parameters()])
    assert isinstance(step, CompiledStep)
    one_program(step)


def test_trainer_without_an_optimizer() -> None:
    model = small_model(DEVICE)
    trainer = optimizers.SingleTraceTrainer(model, loss_fn=lambda output: output.square().sum())
    step = trainer.make_compiled_train_step()
    x, _ = next(seeded_data(1))
    for _ in range(3):
        step(x.to(DEVICE))
    other = small_model("cpu")
    other(x).square().sum().backward()
    wanted = [p.grad for p in other.parameters()]
    torch.testing.assert_close(
        [p.grad.cpu() for p in model.parameters() if p.grad is not None], wanted
    )


def test_trainer_with_muon() -> None:
    """Matrices by one optimizer, the rest by another; both in the one program."""
    trainer = optimizers.SingleTraceTrainer(small_model(DEVICE), optimizers.Muon(lr=0.01))
    assert [type(o).__name__ for o in trainer.optimizers] == ["Muon", "AdamW"]
    step = trainer.make_compiled_train_step()
    x, y = (t.to(DEVICE) for t in next(seeded_data(1)))
    losses = [step(x, y).item() for _ in range(5)]
    assert losses == sorted(losses, reverse=True)
    assert isinstance(step, CompiledStep)
    one_program(step)


def test_gradients_for_an_optimizer_outside_stay() -> None:
    x = torch.randn(8, 4)
    y = x.sum(1, keepdim=True)

    def train(device: str, compiled: bool) -> list[float]:
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 1).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def part(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            loss = (model(x) - y).square().mean()
            loss.backward()
            return loss.detach()

        step: Any = torch.tpu.compile_step(part) if compiled else part  # type: ignore[attr-defined]
        losses = []
        for i in range(6):
            # Arguments on the CPU are copied to the device, by the first call too.
            losses.append(step(x, y).item())
            if i % 2:
                step(x, y)  # adds to the gradients of the first
            optimizer.step()
            optimizer.zero_grad()
        assert not compiled or step.fallback_reason is None
        return losses

    torch.testing.assert_close(train("tpu", True), train("cpu", False), rtol=1e-5, atol=1e-6)


# --- The first call ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_first_call_is_the_program(name: str) -> None:
    """The optimizer gets the state that its first step would begin with."""
    kind, settings = OPTIMIZERS[name]
    bias = name != "Muon"
    pair = Pair(
        lambda device: small_model(device, bias), lambda parameters: kind(parameters, **settings)
    )
    pair.run(1)
    one_program(pair.tpu_step)
    pair.run(2)
    one_program(pair.tpu_step)
    pair.check(atol=5e-6)


def test_a_scaler_that_is_garbage_does_not_keep_the_first_call_from_being_it() -> None:
    gc.disable()
    try:
        circle: list[Any] = [torch.amp.GradScaler("tpu", init_scale=4.0)]
        circle.append(circle)
        del circle
        pair = Pair(make_optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
        pair.run(1)
        one_program(pair.tpu_step)
    finally:
        gc.enable()


def test_an_optimizer_whose_first_step_is_another() -> None:
    """Damped momentum begins with a gradient that is not damped."""
    pair = Pair(make_optimizer=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.5))
    pair.run(1)
    assert pair.tpu_step.num_programs == 0
    assert pair.tpu_step.fallback_reason is None
    pair.run(3)
    pair.check()
    assert pair.tpu_step.num_programs > 0


def test_a_first_call_that_runs_eagerly_finds_everything_as_it_was() -> None:
    """After the attempt to trace it: parameters, state, random numbers; and what it has cached."""
    gc.collect()  # optimizers of other tests
    model = small_model(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    cache: dict[int, torch.Tensor] = {}
    calls: list[int] = []

    def step(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        if len(x) not in cache:
            cache[len(x)] = torch.arange(3.0, device=x.device) + 1
        optimizer.zero_grad()
        loss: torch.Tensor = (model(x) * cache[len(x)] * torch.rand(3, device=DEVICE)).sum()
        loss.backward()
        optimizer.step()
        return loss

    x = torch.ones(4, 5, device=DEVICE)
    compiled = compile_step(step)
    torch.manual_seed(3)
    with pytest.warns(UserWarning, match="adds to the list in the variable 'calls'"):
        losses = [compiled(x).item() for _ in range(3)]
    assert compiled.fallback_reason is None
    # Traced, eager, traced. What failed is taken back where no other thread can have done it.
    assert len(calls) == (2 if threading.active_count() == 1 else 3)
    assert cache[4].tolist() == [1.0, 2.0, 3.0]
    other = small_model(DEVICE)
    other_optimizer = torch.optim.AdamW(other.parameters(), lr=0.01)
    torch.manual_seed(3)
    expected = []
    for _ in range(3):
        other_optimizer.zero_grad()
        loss = (other(x) * cache[4] * torch.rand(3, device=DEVICE)).sum()
        loss.backward()
        other_optimizer.step()
        expected.append(loss.item())
    assert losses == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("hidden", [False, True])
def test_which_optimizers_step(hidden: bool) -> None:
    """They are found wherever they are, and those that do not step are left alone."""

    class Holder:
        __slots__ = ("optimizer",)
        optimizer: torch.optim.Optimizer

    idle = torch.optim.Adam(small_model(DEVICE).parameters(), lr=0.01)
    holder = Holder()

    def stepper(model: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
        holder.optimizer = optimizer
        params = list(model.parameters())

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            loss = ((model(x) - y) ** 2).mean()
            loss.backward()
            (holder.optimizer if hidden else optimizer).step()
            for p in params:
                p.grad = None
            return loss if idle.param_groups else y

        return step

    pair = Pair(make_step=stepper)
    holder.optimizer = pair.tpu_optimizer
    if hidden:
        pair.cpu_step = stepper(pair.cpu, pair.cpu_optimizer)
        for x, y in seeded_data(2):
            holder.optimizer = pair.cpu_optimizer
            pair.cpu_step(x, y)
        holder.optimizer = pair.tpu_optimizer
        for x, y in seeded_data(2):
            pair.tpu_step(x.to(DEVICE), y.to(DEVICE))
    else:
        pair.run(2)
    pair.check()
    one_program(pair.tpu_step)
    assert not idle.state and idle.param_groups[0]["lr"] == 0.01
    assert not idle.param_groups[0]["capturable"]
    assert not pair.tpu_optimizer.param_groups[0]["capturable"]
    (stepped,) = pair.tpu_step._entries[0].optimizers
    assert stepped[0]() is pair.tpu_optimizer


def test_two_threads_begin_at_once() -> None:
    """Each with a model and an optimizer of its own."""
    pairs = [Pair(), Pair()]
    errors: list[BaseException] = []

    def train(pair: Pair) -> None:
        try:
            pair.run(6)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=train, args=(pair,)) for pair in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    for pair in pairs:
        pair.check()
        one_program(pair.tpu_step)


def test_step_counts_that_are_not_equal_any_more() -> None:
    """Equal counts are one parameter of the program: another one is made when they differ."""
    pair = Pair()
    pair.run(2)
    for model, optimizer in ((pair.cpu, pair.cpu_optimizer), (pair.tpu, pair.tpu_optimizer)):
        optimizer.state[next(model.parameters())]["step"] += 50
    with tpu.explain() as explanation:
        pair.run(2)
    (new,) = [p for p in explanation.programs if "compile_step" in p.calls[0] and not p.known]
    assert "step counts" in new.difference
    pair.run(1)
    pair.check()
    assert pair.tpu_step._entries[0].program.num_donated == 14


def test_a_tensor_of_a_step_that_is_being_traced() -> None:
    """It has no value elsewhere, which is an error and not a crash."""
    model = small_model(DEVICE)
    weight = next(model.parameters())
    errors: list[str] = []

    def look() -> None:
        try:
            (weight.detach() + 1).cpu()
        except RuntimeError as error:
            errors.append(str(error))

    @compile_step
    def step(x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = model(x).sum()
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        return loss

    step(torch.ones(4, 5, device=DEVICE))
    assert errors and all("is being traced" in message for message in errors)
    look()
    assert all("is being traced" in message for message in errors)


def test_what_a_program_that_forks_has_frozen() -> None:
    """Python's collector does not tell of frozen objects, which take part all the same."""
    pair = Pair()
    gc.freeze()
    try:
        pair.run(3)
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
    pair.check()
    one_program(pair.tpu_step)
    assert next(pair.tpu.parameters()).grad is None


# --- What optimizers keep, and gradients between calls ------------------------------------------


@pytest.mark.parametrize("flag", [False, True])
def test_gradients_of_several_calls(flag: bool) -> None:
    """Added up by calls that use no optimizer; used and cleared by a call that does."""

    def train(device: Any, compiled: bool) -> tuple[list[float], list[torch.Tensor]]:
        model = small_model(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

        def update() -> None:
            optimizer.step()
            optimizer.zero_grad()

        def part(x: torch.Tensor, y: torch.Tensor, last: bool) -> torch.Tensor:
            loss = ((model(x) - y) ** 2).mean() / 2
            loss.backward()
            if last:
                update()
            return loss.detach()

        steps: list[Any] = [compile_step(f) if compiled else f for f in (part, update)]
        losses = []
        for i, (x, y) in enumerate(seeded_data(8)):
            losses.append(steps[0](x.to(device), y.to(device), flag and i % 2 == 1).item())
            if not flag and i % 2:
                steps[1]()
        assert not compiled or not any(step.fallback_reason for step in steps)
        return losses, [p.detach().cpu() for p in model.parameters()]

    torch.testing.assert_close(train(DEVICE, True), train("cpu", False), rtol=1e-4, atol=2e-6)


def test_gradients_of_arguments() -> None:
    """The next call has other arguments."""
    model = small_model(DEVICE)

    @compile_step
    def step(x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = model(x).square().sum()
        loss.backward()
        return loss

    inputs = [torch.full((4, 5), float(i), device=DEVICE, requires_grad=True) for i in range(4)]
    step(inputs[0])
    with pytest.warns(UserWarning, match="leaves a gradient in an argument"):
        step(inputs[1])
    inputs[0].grad = None
    for x in inputs[2:]:
        step(x)
        (wanted,) = torch.autograd.grad(model(x).square().sum(), x)
        assert x.grad is not None
        torch.testing.assert_close(x.grad, wanted)


class Counting(torch.optim.Optimizer):
    """Its rate falls with a count that it keeps: in the group, or itself."""

    def __init__(self, parameters: Any, in_group: bool) -> None:
        super().__init__(parameters, {"lr": 0.1})
        self.in_group = in_group
        self.count = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            count = group.get("count", 0) + 1 if self.in_group else self.count + 1
            for p in group["params"]:
                p.add_(p.grad, alpha=-group["lr"] / count)
            if self.in_group:
                group["count"] = count
            else:
                self.count = count


@pytest.mark.parametrize("in_group", [False, True])
def test_an_optimizer_that_counts(in_group: bool) -> None:
    pair = Pair(make_optimizer=lambda parameters: Counting(parameters, in_group))
    with pytest.warns(UserWarning, match=r"'count' of Counting changes in the step, from 1 to 2"):
        pair.run(4)
    pair.check()


class OfItsOwn(torch.optim.AdamW):
    """Has numbers on the device beside the step count, for a while equal to it."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        result = super().step(closure)
        for p in self.state:
            count = self.state[p].setdefault("count", torch.zeros((), device=p.device))
            count += 1
        return result


def test_equal_numbers_of_several_kinds() -> None:
    """Only what stays equal is one value: else a program would be for one call."""
    pair = Pair(make_optimizer=lambda parameters: OfItsOwn(parameters, lr=0.01))
    pair.run(5)
    pair.check()
    one_program(pair.tpu_step)

    def in_groups(parameters: Any) -> torch.optim.Optimizer:
        first, *rest = parameters
        return torch.optim.ASGD([{"params": [first], "lr": 0.02}, {"params": rest}], lr=0.01)

    pair = Pair(make_optimizer=in_groups)
    pair.run(4)
    pair.check()
    one_program(pair.tpu_step)


def test_state_that_is_dropped() -> None:
    """Optimizers begin again then, also when steps outside have made other state since."""
    pair = Pair()
    pair.run(2)
    for optimizer in (pair.cpu_optimizer, pair.tpu_optimizer):
        optimizer.state.clear()
    with tpu.explain() as explanation:
        pair.run(2)
    assert any("state of a parameter" in p.difference for p in explanation.programs)
    for optimizer, step in (
        (pair.cpu_optimizer, pair.cpu_step),
        (pair.tpu_optimizer, pair.tpu_step.__wrapped__),  # type: ignore[attr-defined]
    ):
        optimizer.state.clear()
        x, y = (t.to(optimizer.param_groups[0]["params"][0].device) for t in next(seeded_data(1)))
        step(x, y)
    pair.run(2)
    pair.check()
    assert pair.tpu_step.fallback_reason is None


class Parting(torch.optim.Optimizer):
    """Computes equal numbers in two ways."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for i, p in enumerate(self.param_groups[0]["params"]):
            count = self.state[p].setdefault("count", torch.zeros((), device=p.device))
            count.copy_(count + 1 if i % 2 else (count * 2 + 2) / 2)
            p.sub_(p.grad * 0.1 / count)


def test_equal_numbers_that_part_at_every_call() -> None:
    pair = Pair(make_optimizer=Parting)
    pair.run(16)
    pair.check()
    assert pair.tpu_step.fallback_reason is None


@pytest.mark.parametrize("where", ["variable", "attribute"])
def test_an_optimizer_that_is_replaced(where: str) -> None:
    def train(device: Any, compiled: bool) -> list[torch.Tensor]:
        model = small_model(device)
        held = argparse.Namespace(optimizer=torch.optim.AdamW(model.parameters(), lr=0.01))
        optimizer: torch.optim.Optimizer = held.optimizer

        def step(x: torch.Tensor, y: torch.Tensor) -> None:
            used = optimizer if where == "variable" else held.optimizer
            used.zero_grad()
            ((model(x) - y) ** 2).mean().backward()
            used.step()

        f: Any = compile_step(step) if compiled else step
        for i, (x, y) in enumerate(seeded_data(6)):
            if i == 3:
                optimizer = held.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            f(x.to(device), y.to(device))
        assert not compiled or f.fallback_reason is None
        return [p.detach().cpu() for p in model.parameters()]

    torch.testing.assert_close(train(DEVICE, True), train("cpu", False), rtol=1e-4, atol=2e-6)


def test_optimizers_that_step_in_the_backward_pass() -> None:
    """More than the first call is traced for; an eager backward pass is on another thread."""

    def deeper(device: Any) -> nn.Module:
        torch.manual_seed(0)
        layers = [part for _ in range(3) for part in (nn.Linear(5, 5), nn.Tanh())]
        return nn.Sequential(*layers, nn.Linear(5, 3)).to(device)

    def in_hooks(model: nn.Module, _: torch.optim.Optimizer) -> Step:
        for p in model.parameters():
            optimizer = torch.optim.AdamW([p], lr=0.01)

            def update(_: torch.Tensor, own: torch.optim.Optimizer = optimizer) -> None:
                own.step()
                own.zero_grad()

            p.register_post_accumulate_grad_hook(update)

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            loss = ((model(x) - y) ** 2).mean()
            loss.backward()
            return loss

        return step

    pair = Pair(deeper, make_step=in_hooks)
    pair.run(5)
    pair.check()
    one_program(pair.tpu_step)


def test_an_interrupt_leaves_nothing() -> None:
    pair = Pair()
    inner = plain_step(pair.tpu, pair.tpu_optimizer)
    interrupted: list[int] = []

    @compile_step
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = inner(x, y)
        if not interrupted:
            interrupted.append(1)
            raise KeyboardInterrupt
        return loss

    pair.tpu_step = step
    with pytest.raises(KeyboardInterrupt):
        step(*(t.to(DEVICE) for t in next(seeded_data(1))))
    assert not pair.tpu_optimizer.state and not pair.tpu_optimizer.param_groups[0]["capturable"]
    assert not step._capturable and not step._moved
    pair.run(3)
    pair.check()
    one_program(step)


def test_other_threads_do_not_compile() -> None:
    """``torch.compiler.is_compiling()`` is true on the thread that traces."""
    seen: list[bool] = []

    @compile_step
    def step(x: torch.Tensor) -> torch.Tensor:
        thread = threading.Thread(target=lambda: seen.append(bool(torch.compiler.is_compiling())))
        thread.start()
        thread.join()
        seen.append(bool(torch.compiler.is_compiling()))
        return x + 1

    waiting = threading.Event()
    other = threading.Thread(target=waiting.wait)
    other.start()
    try:
        step(torch.ones(2, device=DEVICE))
    finally:
        waiting.set()
        other.join()
    assert seen == [False, True]
    assert torch.compiler.is_compiling() is False


def test_arguments_on_several_devices() -> None:
    out = subprocess_python.run(
        """
import torch
model = torch.nn.ModuleList([torch.nn.Linear(5, 5).to("tpu:0"), torch.nn.Linear(5, 3).to("tpu:1")])
optimizer = torch.optim.AdamW(model.parameters())
@torch.tpu.compile_step
def step(x, y):
    optimizer.zero_grad()
    loss = (model[1](model[0](x).to("tpu:1")) - y).square().mean()
    loss.backward()
    optimizer.step()
    return loss
losses = [step(torch.ones(2, 5, device="tpu:0"), torch.ones(2, 3, device="tpu:1")) for _ in "abc"]
assert losses[2] < losses[1] < losses[0]
print(step.fallback_reason)
""",
        TORCH_TPU_CPU_DEVICES="2",
    )
    assert out.splitlines() == ["its arguments are on several devices"]


def test_lists_that_the_step_appends_to() -> None:
    """They do not get what attempts to trace the step have made."""
    pair = Pair()
    history: list[Any] = []
    step = pair.tpu_step._fn

    @compile_step
    def remembering(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = step(x, y)
        history.append(loss.detach())
        history.append({"loss": (loss.detach(), 1)})
        return loss

    def train() -> list[float]:
        return [remembering(x.to(DEVICE), y.to(DEVICE)).item() for x, y in seeded_data(4)]

    with pytest.warns(UserWarning, match="kept outside"):
        losses = train()
    assert len(history) == 8
    assert [t.item() for t in history[::2]] == losses
    assert [entry["loss"][0].item() for entry in history[1::2]] == losses


def test_a_checkpoint_goes_on_elsewhere(tmp_path: Path) -> None:
    pair = Pair()
    pair.run(3)
    torch.save(pair.tpu_optimizer.state_dict(), tmp_path / "optimizer.pt")
    state = torch.load(tmp_path / "optimizer.pt", map_location="cpu")
    assert not state["param_groups"][0]["capturable"]
    model = small_model("cpu")
    model.load_state_dict({k: v.cpu() for k, v in pair.tpu.state_dict().items()})
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    optimizer.load_state_dict(state)
    step = plain_step(model, optimizer)
    for x, y in seeded_data(2):
        expected = pair.tpu_step(x.to(DEVICE), y.to(DEVICE)).cpu()
        torch.testing.assert_close(step(x, y).detach(), expected, rtol=1e-5, atol=2e-6)


def test_how_it_prints() -> None:
    @compile_step
    def step(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    assert repr(step).endswith("step, programs: 0>")
    step(torch.ones(2, device=DEVICE))
    assert repr(step).endswith("step, programs: 1>")


@pytest.mark.parametrize("name", ["Adam", "Adam single", "RMSprop", "NAdam", "Adadelta", "ASGD"])
def test_eager_steps_in_between(name: str) -> None:
    """The counts of steps stay on the device. The calls after it begin with gradients."""
    kind, settings = OPTIMIZERS[name]
    pair = Pair(small_model, lambda parameters: kind(parameters, **settings))
    eager = plain_step(pair.tpu, pair.tpu_optimizer)
    for i, (x, y) in enumerate(seeded_data(6)):
        expected = pair.cpu_step(x, y)
        found = (eager if i in (2, 3) else pair.tpu_step)(x.to(DEVICE), y.to(DEVICE))
        torch.testing.assert_close(found.detach().cpu(), expected.detach(), rtol=1e-5, atol=2e-6)
    pair.check(atol=5e-6)
    assert pair.tpu_step.fallback_reason is None and pair.tpu_step.num_programs == 2


# --- Gradients of eager code ----------------------------------------------------------------------


def trained_apart(
    device: Any,
    to_none: bool,
    clip: bool,
    parts: int,
    scaled: bool = False,
    kind: Any = torch.optim.AdamW,
) -> tuple[Any, list[torch.Tensor]]:
    """Backward passes are eager, the optimizer's step is a program (on the device)."""
    model = small_model(device)
    optimizer = kind(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler(torch.device(device).type, init_scale=8.0, growth_interval=3)

    def update() -> torch.Tensor | None:
        norm = None
        if scaled:
            scaler.unscale_(optimizer)
        if clip:
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        if scaled:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        optimizer.zero_grad(set_to_none=to_none)
        return norm

    step: Any = compile_step(update) if device == DEVICE else update
    norms = []
    for i, (x, y) in enumerate(seeded_data(16)):
        loss = ((model(x.to(device)) - y.to(device)) ** 2).mean() / parts
        (scaler.scale(loss) if scaled else loss).backward()
        if (i + 1) % parts == 0:
            norms.append(step())
            assert all((p.grad is None) == to_none for p in model.parameters())
    numbers = [t.detach().cpu() for t in (*model.parameters(), *norms) if t is not None]
    return step, numbers


@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("clip", [True, False])
@pytest.mark.parametrize("parts", [1, 2])
def test_gradients_of_an_eager_backward(to_none: bool, clip: bool, parts: int) -> None:
    """Other tensors at every call, which are operands of the one program."""
    step, found = trained_apart(DEVICE, to_none, clip, parts)
    _, expected = trained_apart("cpu", to_none, clip, parts)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-6)
    one_program(step)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_scaled_gradients_of_an_eager_backward(kind: Any) -> None:
    step, found = trained_apart(DEVICE, True, True, 2, scaled=True, kind=kind)
    _, expected = trained_apart("cpu", True, True, 2, scaled=True, kind=kind)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-6)
    one_program(step)


@pytest.mark.parametrize("what", ["flat", "returned", "stale", "aliased", "missing"])
def test_how_gradients_of_an_eager_backward_are_held(what: str) -> None:
    """Views of one buffer; a result; a list that no longer holds the gradients; one for two."""

    def train(device: Any) -> tuple[Any, list[torch.Tensor]]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        parameters = list(model.parameters())
        held: list[Any] = []

        def update() -> Any:
            if what == "stale":
                for gradient in held:
                    gradient.mul_(0.5)
            optimizer.step()
            for p in parameters:
                gradient = p.grad
                p.grad = None
                if what == "returned" and gradient is not None:
                    return gradient, [p.grad for p in parameters]
            return None

        step: Any = compile_step(update) if device == DEVICE else update
        seen: list[torch.Tensor] = []
        for i in range(8):
            x = torch.linspace(-1, 1, 6).reshape(2, 3).to(device) * (i + 1)
            gradients = torch.autograd.grad(model(x).square().mean(), parameters)
            if what == "flat":
                flat = torch.cat([g.flatten() for g in gradients])
                gradients = tuple(part.reshape(3, 3) for part in flat.split(9))
            if what == "aliased" and i % 2:
                gradients = (gradients[0], gradients[0])
            for p, gradient in zip(parameters, gradients, strict=True):
                p.grad = None if what == "missing" and i % 3 == 2 else gradient
            if what == "stale" and i == 0:
                held.extend(gradients)
            result = step()
            if result is not None:
                seen.extend(t.detach().cpu() for t in (result[0], result[1][1]))
            if what == "missing" and i % 3 == 2:
                assert all(p.grad is None for p in parameters)
        return step, [*(p.detach().cpu() for p in parameters), *seen, *(t.cpu() for t in held)]

    step, found = train(DEVICE)
    _, expected = train("cpu")
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert step.fallback_reason is None
    assert step.num_programs == (2 if what in ("aliased", "missing") else 1)


def test_gradients_for_the_next_call() -> None:
    """The step uses those that it made itself in the call before."""

    def stepper(model: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            optimizer.step()
            optimizer.zero_grad()
            loss = ((model(x) - y) ** 2).mean()
            loss.backward()
            return loss

        return step

    pair = Pair(make_step=stepper, keep_gradients=True)
    pair.run(8)
    pair.check()
    one_program(pair.tpu_step)
    for mine, wanted in zip(pair.tpu.parameters(), pair.cpu.parameters(), strict=True):
        assert mine.grad is not None and wanted.grad is not None
        torch.testing.assert_close(mine.grad.cpu(), wanted.grad, rtol=1e-4, atol=1e-6)


# --- What a step reaches --------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["variable", "attribute"])
@pytest.mark.parametrize("scheduled", [False, True])
def test_what_is_replaced_is_not_kept(where: str, scheduled: bool) -> None:
    """Optimizers, with their state, and schedulers."""

    def train(device: Any) -> tuple[Any, list[torch.Tensor]]:
        model = small_model(device)
        held = argparse.Namespace()

        def begin(rate: float) -> tuple[Any, Any]:
            optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
            return optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

        optimizer, plan = held.optimizer, held.plan = begin(0.1)

        def step(x: torch.Tensor, y: torch.Tensor) -> None:
            used = optimizer if where == "variable" else held.optimizer
            used.zero_grad()
            ((model(x) - y) ** 2).mean().backward()
            used.step()
            if scheduled:
                (plan if where == "variable" else held.plan).step()

        f: Any = compile_step(step) if device == DEVICE else step
        gone: list[weakref.ref[Any]] = []
        for i, (x, y) in enumerate(seeded_data(9)):
            f(x.to(device), y.to(device))
            if i % 3 == 2:
                state = next(iter(optimizer.state.values()))
                gone += [weakref.ref(optimizer), weakref.ref(plan), weakref.ref(state["exp_avg"])]
                del state
                optimizer, plan = held.optimizer, held.plan = begin(0.05)
        if device == DEVICE:
            f(x.to(device), y.to(device))
            gc.collect()
            assert [kept() for kept in gone] == [None] * len(gone)
            assert f.fallback_reason is None
        else:
            f(x, y)
        return f, [p.detach().cpu() for p in model.parameters()]

    _, found = train(DEVICE)
    _, expected = train("cpu")
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-5)


def test_a_scheduler_that_is_replaced() -> None:
    """The optimizer stays: what is stepped from then on is the new one."""
    model = small_model(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    plan: Any = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    inner = plain_step(model, optimizer)

    @compile_step
    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        inner(x, y)
        plan.step()

    x, y = (t.to(DEVICE) for t in next(seeded_data(1)))
    for _ in range(2):
        step(x, y)
    assert optimizer.param_groups[0]["lr"] == 0.25
    first, plan = plan, torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1)
    for _ in range(2):
        step(x, y)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.0025)
    assert first.last_epoch == 2


class Counted:
    """An iterator of Python code, in a slot that is not looked into."""

    __slots__ = ("inner",)

    def __init__(self, inner: Any) -> None:
        self.inner = iter(inner)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self.inner)


def filled(kind: Any, values: list[Any]) -> Any:
    place = kind()
    for value in values:
        place.put(value)
    return place


LOADER_BATCHES: list[Any] = [None]  # of the step below that finds them in a global variable

SOURCES: dict[str, tuple[Callable[[list[Any]], Any], Callable[[Any], Any], str]] = {
    "generator": (lambda b: (batch for batch in b), next, "the generator '<genexpr>'"),
    "list": (iter, next, "a list_iterator"),
    "zip": (lambda b: zip(b, range(100), strict=False), lambda s: next(s)[0], "a zip"),
    "loop": (iter, lambda s: next(batch for batch in s), "a list_iterator"),
    "loader": (
        lambda b: iter(torch.utils.data.DataLoader(cast("Any", b), batch_size=None)),
        next,
        "a DataLoader",
    ),
    "new loader": (
        lambda b: torch.utils.data.DataLoader(cast("Any", b), batch_size=None),
        lambda s: next(iter(s)),
        "a DataLoader",
    ),
    "class": (Counted, next, "a Counted"),
    "queue": (lambda b: filled(queue.Queue, b), lambda q: q.get(), "a queue"),
    "simple queue": (lambda b: filled(queue.SimpleQueue, b), lambda q: q.get(), "a SimpleQueue"),
    "list itself": (list, lambda b: b.pop(0), "the list"),
    "deque": (collections.deque, lambda b: b.popleft(), "the deque"),
}


@pytest.mark.parametrize(
    ("kind", "where"),
    [
        *((kind, "variable") for kind in SOURCES),
        *(("generator", where) for where in ("argument", "attribute", "global")),
        *(("loader", where) for where in ("argument", "attribute", "global")),
        *(("deque", where) for where in ("attribute", "global")),
    ],
)
def test_batches_that_the_step_takes(kind: str, where: str) -> None:
    """None is lost, and none is taken for the same at every call: it is said, and runs eagerly."""
    make, take, words = SOURCES[kind]

    def train(device: Any) -> list[torch.Tensor]:
        model = small_model(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batches = make([(x.to(device), y.to(device)) for x, y in seeded_data(6)])
        held = argparse.Namespace(batches=batches)
        LOADER_BATCHES[0] = batches

        def update(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = ((model(x) - y) ** 2).mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        steps: dict[str, Step] = {
            "variable": lambda: update(*take(batches)),
            "argument": lambda source: update(*take(source)),
            "attribute": lambda: update(*take(held.batches)),
            "global": lambda: update(*take(LOADER_BATCHES[0])),
        }
        step: Any = compile_step(steps[where]) if device == DEVICE else steps[where]
        arguments = [batches] if where == "argument" else []
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            losses = [step(*arguments) for _ in range(6)]
        if device == DEVICE:
            (message,) = (m for m in (str(w.message) for w in caught) if "compile_step" in m)
            assert re.search(f"takes (a value from|values out of) {words}", message)
        assert held.batches is batches and LOADER_BATCHES[0] is batches
        return [loss.cpu() for loss in losses]

    torch.testing.assert_close(train(DEVICE), train("cpu"), rtol=1e-4, atol=2e-6)


class Counter:
    """Keeps an average of a model's parameters, and counts, as libraries do."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.shadow = [p.detach().clone() for p in model.parameters()]
        self.count = 0
        self.decay = 1.0
        self.averages = 0
        self.last = "none"

    def decayed(self) -> None:
        self.decay *= 0.5
        self.decay -= 0.125 * self.decay

    def counted(self) -> Counter:
        self.count += 1
        return self

    @torch.no_grad()
    def update(self) -> None:
        decay = min(0.9, (1 + self.count) / (10 + self.count))
        for mine, p in zip(self.shadow, self.model.parameters(), strict=True):
            mine.mul_(decay).add_(p, alpha=1 - decay)
        self.averages += 1


COUNTS: dict[str, Callable[[Counter, dict[str, int]], Any]] = {
    "counts": lambda c, _: c.counted(),
    "average": lambda c, _: c.counted().update(),
    "entry": lambda _, numbers: numbers.update(count=numbers["count"] + 2),
    "every third": lambda c, _: c.update() if c.counted().count % 3 == 0 else None,
    "rate": lambda c, _: c.decayed(),
}


@pytest.mark.parametrize("what", COUNTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_the_step_counts(what: str, dtype: torch.dtype) -> None:
    """It goes on counting, and what it decides and computes by a count follows."""
    argument = dtype == torch.float32  # as the other place where it is found

    def train(device: Any) -> tuple[Any, Any, list[torch.Tensor]]:
        model = small_model(device).to(dtype)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        counter, numbers = Counter(model), {"count": 3}

        def step(x: torch.Tensor, y: torch.Tensor, counter: Counter = counter) -> Any:
            optimizer.zero_grad()
            loss = ((model(x) - y) ** 2).mean() * (counter.decay if what == "rate" else 1)
            loss.backward()
            optimizer.step()
            COUNTS[what](counter, numbers)
            return loss.detach(), counter.count

        f: Any = compile_step(step) if device == DEVICE else step
        values: list[torch.Tensor] = []
        counts = []
        for x, y in seeded_data(9):
            x, y = (t.to(device, dtype) for t in (x, y))
            loss, count = f(x, y, *([counter] if argument else []))
            counts.append((count, counter.count, counter.averages, counter.decay, numbers["count"]))
            values.append(loss.cpu())
        assert all(type(number) in (int, float) for numbers in counts for number in numbers)
        values += [t.detach().cpu() for t in (*counter.shadow, *model.parameters())]
        return f, counts, values

    step, counts, found = train(DEVICE)
    _, wanted, expected = train("cpu")
    assert counts == wanted
    double = dtype == torch.float64
    rtol, atol = (1e-10, 1e-12) if double else (1e-4, 2e-6)
    torch.testing.assert_close(found, expected, rtol=rtol, atol=atol)
    assert step.fallback_reason is None
    # A clause of `min`, a remainder: each outcome has a program.
    assert step.num_programs <= 2


@pytest.mark.parametrize("what", ["variable", "module"])
def test_other_places_of_counts(what: str) -> None:
    model: Any = small_model(DEVICE)
    model.seen = 0
    seen = 0

    @compile_step
    def step(x: torch.Tensor) -> torch.Tensor:
        nonlocal seen
        if what == "variable":
            seen += 1
        else:
            model.seen += len(x)
        out: torch.Tensor = model(x)
        return out

    for i in range(5):
        step(torch.ones(3, 5, device=DEVICE))
        assert (seen, model.seen) == ((i + 1, 0) if what == "variable" else (0, 3 * (i + 1)))
    one_program(step)


CHANGES: dict[str, tuple[Callable[[Counter], Any], str]] = {
    "text": (
        lambda c: setattr(c, "last", "other" if c.last == "none" else c.last + "r"),
        "'last' of Counter changes in the step, from 'other' to 'otherr'",
    ),
    "printed": (
        lambda c: f"{c.counted().count}",
        "'count' of Counter changes in the step, which needs it as a number",
    ),
    "looked up": (
        lambda c: {2: 1}.get(c.counted().count),
        "'count' of Counter changes in the step, which needs it as a number",
    ),
    "device": (
        lambda c: c.shadow[0].mul_(c.counted().count),
        "'count' of Counter changes in the step",
    ),
    "tensor": (
        lambda c: setattr(c, "decay", c.decay + c.shadow[0].sum()),
        "are kept outside",
    ),
    "clock": (
        lambda c: setattr(c, "decay", time.perf_counter()),
        "'decay' of Counter changes in the step",
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_the_step_changes_on_the_host(what: str) -> None:
    """Where a program cannot do it the step runs eagerly, and the change is named."""
    change, words = CHANGES[what]
    model = small_model(DEVICE)
    counter, eager = Counter(model), Counter(model)

    @compile_step
    def step(x: torch.Tensor) -> torch.Tensor:
        change(counter)
        out: torch.Tensor = model(x)
        return out

    x = torch.ones(3, 5, device=DEVICE)
    with pytest.warns(UserWarning, match=words):
        assert [step(x).sum().item() for _ in range(4)] == [model(x).sum().item()] * 4
    for _ in range(4):
        change(eager)
    assert (counter.last, counter.count) == (eager.last, eager.count)
    torch.testing.assert_close(counter.shadow, eager.shadow)
    assert step.fallback_reason is not None and words in step.fallback_reason


def test_what_the_step_adds_to_a_list() -> None:
    """Only while it is traced, which is said; not where only first calls do so."""
    history: list[int] = []
    cache: dict[int, int] = {}

    @compile_step
    def step(x: torch.Tensor, log: bool) -> torch.Tensor:
        cache.setdefault(len(x), 2 * len(x))
        if log:
            history.append(len(x))
        return x + cache[len(x)]

    x = torch.ones(3, device=DEVICE)
    for _ in range(4):
        assert step(x, False)[0].item() == 7
    with pytest.warns(UserWarning, match="adds to the list in the variable 'history'") as caught:
        assert [step(x, True)[0].item() for _ in range(4)] == [7] * 4
    assert len(caught) == 1
    assert step.fallback_reason is None


@pytest.mark.parametrize("disturbed", [3, 8])
def test_another_thread_that_sets_the_random_state(disturbed: int) -> None:
    """The step is traced again at the next call, a few times."""
    in_the_way, waiting = threading.Event(), threading.Event()

    @compile_step
    def step(x: torch.Tensor) -> torch.Tensor:
        if in_the_way.is_set():
            other = threading.Thread(target=torch.manual_seed, args=(3,))
            other.start()
            other.join()
        return x + torch.rand(4, device=DEVICE)

    alive = threading.Thread(target=waiting.wait)
    alive.start()
    x = torch.ones(4, device=DEVICE)
    in_the_way.set()
    stays = disturbed == 8
    gives_up = pytest.warns(UserWarning, match="the random state is set")
    try:
        with gives_up if stays else contextlib.nullcontext():
            assert [bool((step(x) >= 1).all()) for _ in range(disturbed)] == [True] * disturbed
        in_the_way.clear()
        results = [step(x).tolist() for _ in range(3)]
    finally:
        waiting.set()
        alive.join()
    assert results[0] != results[1] != results[2]
    assert (step.fallback_reason is not None) == stays
    assert step.num_programs == (0 if stays else 1)


def test_arguments_are_copied_once() -> None:
    """Also where the first call is traced in vain, and then runs eagerly."""

    class Copies(TorchFunctionMode):
        count = 0

        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if getattr(func, "__name__", "") == "to" and args[0].device.type == "cpu":
                self.count += 1
            return func(*args, **(kwargs or {}))

    pair = Pair(make_optimizer=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.5))
    for x, y in seeded_data(4):
        with Copies() as copies:
            found = pair.tpu_step(x, y)
        assert copies.count == 2
        torch.testing.assert_close(found.cpu(), pair.cpu_step(x, y).detach(), rtol=1e-5, atol=2e-6)
    assert pair.tpu_step.fallback_reason is None


def test_a_number_that_a_tensor_is_added_to() -> None:
    """As meters do: it is a tensor from then on."""
    model = small_model(DEVICE)
    meters = [argparse.Namespace(total=0.0, count=0) for _ in range(2)]

    def step(x: torch.Tensor, meter: argparse.Namespace) -> torch.Tensor:
        out: torch.Tensor = model(x).detach().sum()
        meter.total += out * len(x)
        meter.count += len(x)
        return out

    compiled = compile_step(step)
    x = torch.ones(3, 5, device=DEVICE)
    expected = pytest.approx([model(x).sum().item()] * 4)
    assert [compiled(x, meters[0]).item() for _ in range(4)] == expected
    for _ in range(4):
        step(x, meters[1])
    torch.testing.assert_close(meters[0].total, meters[1].total)
    assert meters[0].count == meters[1].count == 12
    one_program(compiled)


class Slotted:
    """What it holds is not found."""

    __slots__ = ("batches",)

    def __init__(self, batches: Any) -> None:
        self.batches = batches


@pytest.mark.parametrize("fails", [False, True])
def test_batches_of_a_generator_that_is_not_found(fails: bool) -> None:
    """It is not to be ended by an exception; the value is used, or its loss is told."""

    def endless(data: Any) -> Iterator[Any]:
        while True:
            yield from torch.utils.data.DataLoader(data, batch_size=None)

    held = Slotted(endless([torch.full((2,), float(i), device=DEVICE) for i in range(3)]))
    count = 0

    @compile_step
    def step() -> torch.Tensor:
        nonlocal count
        count += 1
        x: torch.Tensor = next(held.batches) * 2
        if fails:
            x.sum().item()
        return x

    words = "is lost, the call goes on with the next" if fails else "a DataLoader, in a generator"
    with pytest.warns(UserWarning, match=words) as caught:
        values = [step()[0].item() for _ in range(5)]
    assert len([w for w in caught if "compile_step" in str(w.message)]) == 1
    assert values == ([2, 4, 0, 2, 4] if fails else [0, 2, 4, 0, 2])
    assert count == 5


def test_what_the_step_reaches_is_not_read() -> None:
    """Dictionaries of tensors, by tensors; other steps; itself."""
    model = small_model(DEVICE)
    held = argparse.Namespace(names={p: n for n, p in model.named_parameters()}, last=None)

    @compile_step
    def inner(x: torch.Tensor) -> torch.Tensor:
        return x * len(held.names)

    @compile_step
    def step(x: torch.Tensor) -> torch.Tensor:
        held.names.update({p: n + "." for n, p in model.named_parameters() if held.last})
        out: torch.Tensor = model(x)
        return out

    held.steps = [inner, step]
    for _ in range(3):
        torch.testing.assert_close(
            inner(step(torch.ones(4, 5, device=DEVICE))), 4 * model(torch.ones(4, 5, device=DEVICE))
        )
    one_program(inner)
    one_program(step)
    held.last = "now"
    step.reset()
    with pytest.warns(
        UserWarning, match="the entry for a Parameter of|for a Parameter of the dict"
    ):
        step(torch.ones(4, 5, device=DEVICE))


def test_a_model_that_was_left_on_the_cpu_is_named(device: torch.device) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @compile_step
    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        optimizer.step()
        return loss

    with pytest.raises(RuntimeError, match="same device") as caught:
        step(torch.randn(4, 3))
    notes = "\n".join(caught.value.__notes__)
    assert "the parameter weight of Linear is on the CPU" in notes and 'model.to("tpu")' in notes
