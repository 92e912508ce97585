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
# Those of before the scope that finds new ones.
_before: list[Any] | None = None


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
    global _before
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
            _before = None
            if not frozen:
                gc.unfreeze()


def new_tensors() -> list[torch.Tensor]:
    """Those made in the scope :func:`new_apart` and still there; what is garbage is collected."""
    gc.collect()
    return _C.live_objects(torch.Tensor)


def collect_everything() -> None:
    """Collects what is older than the scope, too, which is no longer apart then."""
    global _before
    if _before is not None:
        _before = []
        gc.unfreeze()
    gc.collect()


def leaves() -> list[torch.Tensor]:
    """The tensors that can have a gradient."""
    with torch._C.DisableTorchFunctionSubclass():
        return [
            t
            for t in live_objects(torch.Tensor)
            if not torch.nn.parameter.is_lazy(t) and t.requires_grad and t.is_leaf
        ]
