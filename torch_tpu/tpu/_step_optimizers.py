"""The optimizers that a training step may use, before it has run."""

from __future__ import annotations

import functools
import inspect
import itertools
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim import Optimizer

# Of objects that hold optimizers: further ones are found when they step.
_MOST = 1000


def reachable_optimizers(fn: Callable[..., Any]) -> list[Optimizer]:
    """Those on the device that a function names: its variables, and what these hold.

    Not all that there are, which other threads may be using.
    """
    found: list[Optimizer] = []
    seen: set[int] = set()
    waiting: list[Any] = [fn]
    while waiting and len(seen) < _MOST:
        value = waiting.pop(0)
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Optimizer):
            if _trains_on_device(value):
                found.append(value)
        else:
            waiting.extend(itertools.islice(_held(value), _MOST))
    return found


def _held(value: Any) -> Iterator[Any]:
    if isinstance(value, types.MethodType):
        yield value.__self__
        yield value.__func__
    elif isinstance(value, functools.partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, types.FunctionType):
        yield inspect.unwrap(value)
        for cell in value.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:  # not assigned yet
                continue
        for name in _names(value.__code__):
            if name in value.__globals__:
                yield value.__globals__[name]
    elif isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, (list, tuple, set)):
        yield from value
    elif not isinstance(value, (type, types.ModuleType, torch.Tensor, torch.nn.Module)):
        yield from getattr(value, "__dict__", {}).values()
        if callable(value):
            yield from (getattr(type(value).__call__, "__func__", type(value).__call__),)


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _trains_on_device(optimizer: Optimizer) -> bool:
    groups = getattr(optimizer, "param_groups", ())
    return any(p.device.type == "tpu" for group in groups for p in group["params"])
