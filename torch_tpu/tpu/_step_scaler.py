"""``torch.amp.GradScaler`` in a training step that is one program.

Whether a gradient is infinite is known on the device only. So the optimizer steps in any case, and
the program keeps the old values of what it has written where it should not have stepped.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch.amp import GradScaler
from torch.optim import Optimizer

from torch_tpu.tpu._instance_attribute import instance_attribute
from torch_tpu.tpu._live_objects import live_objects
from torch_tpu.tpu._step_errors import NotCapturableError

SETTINGS = ("_enabled", "_growth_factor", "_backoff_factor", "_growth_interval")


def existing() -> list[GradScaler]:
    """The scalers that there are and that scale."""
    return [scaler for scaler in live_objects(GradScaler) if scaler.is_enabled()]


@contextlib.contextmanager
def decided_in_program(scaler: GradScaler) -> Iterator[None]:
    """While a step is traced: ``scaler.step`` does not ask the device whether to step."""

    here, original = threading.get_ident(), scaler._maybe_opt_step

    def step(optimizer: Optimizer, state: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != here:
            return original(optimizer, state, *args, **kwargs)
        found = list(state["found_inf_per_device"].values())
        skip = functools.reduce(torch.add, found) != 0
        before = _contents(optimizer)
        result = optimizer.step(*args, **kwargs)
        with torch.no_grad():
            for container, name, tensor, old in before:
                now = container[name]
                kept = torch.where(skip, old, now)
                if now is tensor:
                    tensor.copy_(kept)
                else:
                    container[name] = kept
        return result

    with instance_attribute(scaler, "_maybe_opt_step", step):
        yield


@contextlib.contextmanager
def noticing_skips(scaler: GradScaler, skipped: list[Optimizer]) -> Iterator[None]:
    """Notes the optimizers that do not step because of their gradients."""
    here, original = threading.get_ident(), scaler._maybe_opt_step

    def step(optimizer: Optimizer, state: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() == here and any(
            found.item() for found in state["found_inf_per_device"].values()
        ):
            skipped.append(optimizer)
        return original(optimizer, state, *args, **kwargs)

    with instance_attribute(scaler, "_maybe_opt_step", step):
        yield


def check_finished(scaler: GradScaler) -> None:
    """The step has to do for a scaler's optimizers all that belongs to an iteration."""
    if scaler._enabled and scaler._per_optimizer_states:
        raise NotCapturableError(
            "a GradScaler is used in it whose update() is called elsewhere; call update() in the "
            "step as well"
        )


def _contents(optimizer: Optimizer) -> list[tuple[Any, Any, torch.Tensor, torch.Tensor]]:
    """The tensors that an optimizer writes: in which container, under which key, and the value."""
    containers: list[Any] = [group["params"] for group in optimizer.param_groups]
    containers += [state for state in optimizer.state.values() if isinstance(state, dict)]
    return [
        (container, key, value, value.detach().clone())
        for container in containers
        for key, value in (
            container.items() if isinstance(container, dict) else enumerate(container)
        )
        if isinstance(value, torch.Tensor) and value.device.type == "tpu"
    ]
