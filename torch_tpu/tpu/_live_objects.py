"""The tensors, modules and optimizers that there are, however code comes by them."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from torch_tpu import _C

_KINDS = (torch.Tensor, torch.nn.Module, Optimizer, LRScheduler, GradScaler)

_scope = threading.RLock()
# Those of before the scope that finds new ones; and by identity all that had been made in it, of
# whatever kind, when it was given up.
_before: list[Any] | None = None
_made: set[int] | None = None


def live_objects(*kinds: type) -> list[Any]:
    """The objects of some of :data:`_KINDS`, asked of Python's collector."""
    with _scope:
        if _before is not None:
            known = [o for o in _before if issubclass(type(o), kinds)]
            return known + _C.live_objects(*kinds)
        # Programs that fork freeze what there is: the collector does not tell of it then.
        frozen = gc.get_freeze_count() > 0
        if frozen:
            gc.unfreeze()
        try:
            return _C.live_objects(*kinds)
        finally:
            if frozen:
                gc.freeze()


@contextlib.contextmanager
def new_apart() -> Iterator[None]:
    """In this scope what is new can be found, and collected, without a look at all the rest."""
    global _before, _made
    with _scope:
        if _before is not None:
            yield
            return
        frozen = gc.get_freeze_count() > 0
        if frozen:
            gc.unfreeze()
        _before = _C.live_objects(*_KINDS)
        gc.freeze()
        try:
            yield
        finally:
            _before = _made = None
            if not frozen:
                gc.unfreeze()


def new_tensors() -> list[torch.Tensor]:
    """Those made in the scope :func:`new_apart` and still there; what is garbage is collected."""
    gc.collect()
    return _C.live_objects(torch.Tensor)


def collect_everything() -> None:
    """Collects what is older than the scope, too, which is no longer apart then."""
    global _before, _made
    if _before is not None and _made is None:
        _made = {id(o) for o in gc.get_objects()}
        _before = []
        gc.unfreeze()
    gc.collect()


def take_back_appended(values: list[Any]) -> None:
    """Removes from the ends of lists older than the scope what holds these values."""
    made = {id(o) for o in gc.get_objects()} if _made is None else _made
    doomed = {id(value) for value in values}
    lists: dict[int, list[Any]] = {}
    waiting = list(values)
    own = {id(values), id(waiting)}
    while waiting:
        for holder in gc.get_referrers(waiting.pop()):
            if id(holder) in own or id(holder) in doomed:
                continue
            if type(holder) in (list, tuple, dict) and id(holder) in made:
                doomed.add(id(holder))
                waiting.append(holder)
            elif type(holder) is list:
                lists[id(holder)] = holder
    for holder in lists.values():
        while holder and id(holder[-1]) in doomed:
            holder.pop()


def leaves() -> list[torch.Tensor]:
    """The tensors that can have a gradient."""
    with torch._C.DisableTorchFunctionSubclass():
        return [
            t
            for t in live_objects(torch.Tensor)
            if not torch.nn.parameter.is_lazy(t) and t.requires_grad and t.is_leaf
        ]
