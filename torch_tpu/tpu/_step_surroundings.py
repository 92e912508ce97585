"""What a training step changes on the host beside modules and optimizers.

A program does not do that again: a count stays what it was, a list has the same first entry.
"""

from __future__ import annotations

import collections
import operator
import threading
import types
from typing import Any, NamedTuple

import torch
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from torch_tpu.tpu._step_reach import Held, reached, words

_CONTAINERS = (dict, list, set, collections.deque, collections.OrderedDict, collections.defaultdict)
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_MISSING = object()


class Change(NamedTuple):
    """A place whose value is another one."""

    held: Held
    new: Any


class Surroundings:
    """What the step reaches, as it is when it begins: variables, attributes and containers."""

    def __init__(self, roots: list[Any]) -> None:
        # By identity: containers, attributes among them, with a copy and in words.
        self._containers: dict[int, tuple[Any, Any, str]] = {}
        self._variables: list[Held] = []
        for held in reached(*roots):
            value, where = held.value, held.where
            if isinstance(where, types.CellType) or _is_global(held):
                self._variables.append(held)
            if type(value) in _CONTAINERS:
                kind = type(value).__name__
                what = f"a {kind}" if held.where is None else f"the {kind} in {held.what}"
                self._containers.setdefault(id(value), (value, value.copy(), what))
            elif type(getattr(value, "__dict__", None)) is dict and not isinstance(
                value, (type, types.ModuleType, types.FunctionType, torch.nn.Module, torch.Tensor)
            ):
                if isinstance(value, (Optimizer, LRScheduler, GradScaler)):
                    continue
                attributes = vars(value)
                self._containers.setdefault(
                    id(attributes), (attributes, attributes.copy(), type(value).__name__)
                )

    def changes(self) -> list[Change]:
        """Numbers, strings and the like that are others: in variables, attributes and entries."""
        found = [Change(held, held.now()) for held in self._variables]
        for container, copy, what in self._changed():
            if isinstance(container, dict):
                found += [
                    Change(Held(container, key, old, f"{words(key)} of {what}"), container[key])
                    for key, old in copy.items()
                    if key in container
                ]
            elif isinstance(container, list):
                found += [
                    Change(Held(container, i, old, f"the entry {i} of {what}"), now)
                    for i, (old, now) in enumerate(zip(copy, container, strict=False))
                ]
        return [
            change
            for change in found
            if isinstance(change.held.value, _PLAIN) and differ(change.held.value, change.new)
        ]

    def taken_from(self) -> str | None:
        """A container that does not have any more what it had, in words."""
        for container, copy, what in self._changed():
            if isinstance(container, dict):
                taken = any(key not in container for key in copy)
            else:
                there = {id(value) for value in container}
                gone = [value for value in copy if id(value) not in there]
                taken = len(container) < len(copy) or not all(isinstance(v, _PLAIN) for v in gone)
            if taken:
                return what
        return None

    def grown(self) -> str | None:
        """A container that has got more, in words."""
        for container, copy, what in self._changed():
            if len(container) > len(copy) or isinstance(container, collections.deque):
                return what
        return None

    def _changed(self) -> list[tuple[Any, Any, str]]:
        return [entry for entry in self._containers.values() if not _same(entry[0], entry[1])]

    def put_back(self) -> None:
        """For an attempt that failed: the call is made once more."""
        for held in self._variables:
            if held.now() is not held.value:
                held.put(held.value)
        alone = threading.active_count() == 1
        for container, copy, _ in self._changed():
            _put_back(container, copy, alone)


def _is_global(held: Held) -> bool:
    return isinstance(held.where, dict) and held.what.startswith("the variable")


def differ(old: Any, new: Any) -> bool:
    """Whether two values of Python's are not the same number, string or object."""
    return new is not old and (type(new) is not type(old) or bool(new != old))


def _same(container: Any, copy: Any) -> bool:
    if isinstance(container, set):
        return bool(container == copy)
    values = (c.values() if isinstance(c, dict) else c for c in (container, copy))
    return len(container) == len(copy) and all(map(operator.is_, *values))


def _put_back(container: Any, copy: Any, alone: bool) -> None:
    if isinstance(container, dict):
        for key, old in copy.items():
            if container.get(key, _MISSING) is not old:
                container[key] = old
        for key in [key for key in container if key not in copy] if alone else ():
            del container[key]
    elif isinstance(container, set):
        container |= copy
        if alone:
            container &= copy
    else:
        # What another thread has put there in the meantime stays.
        there = {id(value) for value in copy}
        added = [] if alone else [value for value in container if id(value) not in there]
        container.clear()
        container.extend([*copy, *added])
