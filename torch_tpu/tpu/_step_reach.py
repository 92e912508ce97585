"""What the function of a training step names: its variables, and what these hold."""

from __future__ import annotations

import collections
import functools
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

# Of objects that are looked into, and of what one of them holds.
_MOST = 4000
_MOST_HELD = 1000

# Nothing that a step might change is in them.
_LEAVES = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    torch.dtype,
    torch.device,
    torch.Tensor,
    type,
    types.ModuleType,
    types.BuiltinFunctionType,
)

# What modules have; only what they have beyond it is looked into.
_OF_MODULES = frozenset(vars(torch.nn.Module()))


class Held(NamedTuple):
    """A value, and the place that holds it: under a key, or in a function's variable."""

    where: dict[Any, Any] | list[Any] | types.CellType | None
    key: Any
    value: Any
    #: The place in words.
    what: str

    def now(self) -> Any:
        """What is in the place at this time; None when it is empty."""
        if isinstance(self.where, types.CellType):
            try:
                return self.where.cell_contents
            except ValueError:  # the variable has been deleted
                return None
        if isinstance(self.where, dict):
            return self.where.get(self.key)
        if isinstance(self.where, list) and self.key < len(self.where):
            return self.where[self.key]
        return None

    def put(self, value: Any) -> bool:
        """Puts another value in the place; False where that cannot be done."""
        if isinstance(self.where, types.CellType):
            self.where.cell_contents = value
        elif type(self.where) in (dict, list):
            self.where[self.key] = value  # type: ignore[index]
        else:
            return False
        return True


def reached(*roots: Any) -> Iterator[Held]:
    """All that some values, and functions, hold; values that are held twice come twice."""
    seen: set[int] = set()
    waiting = collections.deque(Held(None, None, root, "an argument") for root in roots)
    while waiting and len(seen) < _MOST:
        held = waiting.popleft()
        yield held
        value = held.value
        if isinstance(value, _LEAVES) or id(value) in seen:
            continue
        seen.add(id(value))
        for count, inner in enumerate(_held(value)):
            if count == _MOST_HELD:
                break
            waiting.append(inner)


def reachable_optimizers(fn: Callable[..., Any]) -> list[Optimizer]:
    """Those on the device that a function names: its variables, and what these hold.

    Not all that there are, which other threads may be using.
    """
    found: dict[int, Optimizer] = {}
    for held in reached(fn):
        if isinstance(held.value, Optimizer) and _trains_on_device(held.value):
            found.setdefault(id(held.value), held.value)
    return list(found.values())


def module_on_cpu(fn: Callable[..., Any]) -> str | None:
    """A parameter on the CPU of a module that `fn` uses, in words; None where there is none."""
    for held in reached(fn):
        if isinstance(held.value, torch.nn.Module):
            for name, parameter in held.value.named_parameters():
                if parameter.device.type == "cpu":
                    return f"the parameter {name} of {type(held.value).__name__}"
    return None


def _held(value: Any) -> Iterator[Held]:
    if isinstance(value, types.MethodType):
        yield Held(None, None, value.__self__, "the object of a method")
        yield Held(None, None, value.__func__, "a method")
    elif isinstance(value, functools.partial):
        for part in (value.func, *value.args, *value.keywords.values()):
            yield Held(None, None, part, "a part of a functools.partial")
    elif isinstance(value, types.FunctionType):
        yield from _variables(value)
    elif isinstance(value, dict):
        for key, inner in list(value.items()):
            yield Held(value, key, inner, f"the entry {words(key)} of a {type(value).__name__}")
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield Held(value, place, inner, f"the entry {place} of a list")
    elif isinstance(value, (tuple, set, collections.deque)):
        for inner in list(value):
            yield Held(None, None, inner, f"an entry of a {type(value).__name__}")
    elif type(value).__module__.startswith("torch_tpu.tpu._"):  # another step of compile_step
        yield Held(None, None, getattr(value, "__wrapped__", None), "a step")
    elif isinstance(value, LRScheduler):
        yield Held(None, None, getattr(value, "optimizer", None), "the optimizer of a scheduler")
    elif not isinstance(value, (Optimizer, GradScaler)):
        attributes = getattr(value, "__dict__", {})
        name = type(value).__name__
        module = isinstance(value, torch.nn.Module)
        for key, inner in list(attributes.items()) if type(attributes) is dict else ():
            if not (module and key in _OF_MODULES):
                yield Held(attributes, key, inner, f"{words(key)} of {name}")
        if callable(value) and not module:
            call = getattr(type(value).__call__, "__func__", type(value).__call__)
            yield Held(None, None, call, "__call__")


def words(key: Any) -> str:
    """A key of a dictionary, for messages: a tensor's text would read its values."""
    return repr(key) if type(key) in (str, int) else f"for a {type(key).__name__}"


def _variables(function: types.FunctionType) -> Iterator[Held]:
    yield Held(None, None, inspect.unwrap(function), "a function")
    for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        yield Held(None, None, value, "the default of an argument")
    cells = function.__closure__ or ()
    for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
        try:
            yield Held(cell, None, cell.cell_contents, f"the variable {name!r}")
        except ValueError:  # not assigned yet
            continue
    variables = function.__globals__
    if str(variables.get("__name__")).partition(".")[0] in ("torch", "torch_tpu"):
        return
    for name in _names(function.__code__):
        if name in variables:
            yield Held(variables, name, variables[name], f"the variable {name!r}")


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _trains_on_device(optimizer: Optimizer) -> bool:
    groups = getattr(optimizer, "param_groups", ())
    return any(p.device.type == "tpu" for group in groups for p in group["params"])


def stepping_in_variables(fn: Callable[..., Any]) -> list[Held]:
    """The optimizers and schedulers that variables, attributes and entries of dictionaries hold."""
    return [
        held
        for held in reached(fn)
        if isinstance(held.value, (Optimizer, LRScheduler))
        and (isinstance(held.where, types.CellType) or type(held.where) is dict)
    ]
