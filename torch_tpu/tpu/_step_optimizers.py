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


# Where a value is: under a key of a dictionary, in a function's cell, or elsewhere.
Place = tuple[dict[Any, Any], Any] | types.CellType | None


def reachable_optimizers(fn: Callable[..., Any]) -> list[Optimizer]:
    """Those on the device that a function names: its variables, and what these hold.

    Not all that there are, which other threads may be using.
    """
    found: dict[int, Optimizer] = {}
    for _, optimizer in optimizers_in_place(fn):
        if _trains_on_device(optimizer):
            found.setdefault(id(optimizer), optimizer)
    return list(found.values())


def optimizers_in_place(fn: Callable[..., Any]) -> Iterator[tuple[Place, Optimizer]]:
    """All that a function names, with the variables and entries that hold them."""
    seen: set[int] = set()
    waiting: list[tuple[Place, Any]] = [(None, fn)]
    while waiting and len(seen) < _MOST:
        place, value = waiting.pop(0)
        if isinstance(value, Optimizer):
            yield place, value
        elif id(value) not in seen:
            seen.add(id(value))
            waiting.extend(itertools.islice(_held(value), _MOST))


def _held(value: Any) -> Iterator[tuple[Place, Any]]:
    if isinstance(value, types.MethodType):
        yield None, value.__self__
        yield None, value.__func__
    elif isinstance(value, functools.partial):
        yield from ((None, part) for part in (value.func, *value.args, *value.keywords.values()))
    elif isinstance(value, types.FunctionType):
        yield None, inspect.unwrap(value)
        for cell in value.__closure__ or ():
            try:
                yield cell, cell.cell_contents
            except ValueError:  # not assigned yet
                continue
        for name in _names(value.__code__):
            if name in value.__globals__:
                yield (value.__globals__, name), value.__globals__[name]
    elif isinstance(value, dict):
        yield from (((value, key), held) for key, held in value.items())
    elif isinstance(value, (list, tuple, set)):
        yield from ((None, held) for held in value)
    elif not isinstance(value, (type, types.ModuleType, torch.Tensor, torch.nn.Module)):
        attributes = getattr(value, "__dict__", {})
        yield from (((attributes, name), held) for name, held in attributes.items())
        if callable(value):
            yield None, getattr(type(value).__call__, "__func__", type(value).__call__)


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _trains_on_device(optimizer: Optimizer) -> bool:
    groups = getattr(optimizer, "param_groups", ())
    return any(p.device.type == "tpu" for group in groups for p in group["params"])
