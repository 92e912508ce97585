"""One training step over several parts of its batch."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils import _pytree as pytree

from torch_tpu import _C
from torch_tpu.tpu import _live_objects
from torch_tpu.tpu._live_objects import live_objects


class Microbatches:
    """Calls a training step for one part of the batch after the other.

    Optimizers and schedulers step in the last call only. There the gradients that arrive at the
    parameters are the means over all parts, so that what the step does to them (clipping) is as if
    the batch had been whole.
    """

    def __init__(self, fn: Callable[..., Any], count: int, traced: bool) -> None:
        self._fn = fn
        self._count = count
        self._traced = traced
        self._sums: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._last = False

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The step's result: numbers are averaged, whole numbers added up, batches joined."""
        leaves, spec = pytree.tree_flatten((args, kwargs))
        size = self._batch_size(leaves)
        part = size // self._count
        parameters = _parameters()
        gradients = [p.grad for p in parameters]
        results = []
        with contextlib.ExitStack() as stack:
            for p in parameters:
                stack.callback(p.register_hook(self._hook(p)).remove)
            for i in range(self._count):
                self._last = i == self._count - 1
                for p, gradient in zip(parameters, gradients, strict=True):
                    p.grad = gradient if self._last else None
                pieces = [
                    leaf[i * part : (i + 1) * part] if _is_batch(leaf, size) else leaf
                    for leaf in leaves
                ]
                if self._traced and i:
                    pieces = self._after_the_one_before(pieces)
                given_args, given_kwargs = pytree.tree_unflatten(pieces, spec)
                with self._final() if self._last else _held_back():
                    results.append(self._fn(*given_args, **given_kwargs))
        return _joined(results, part)

    def _batch_size(self, leaves: list[Any]) -> int:
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor) and leaf.dim() > 0:
                size = leaf.shape[0]
                if size % self._count:
                    raise ValueError(
                        f"torch.tpu.compile_step: expected a batch that accumulate={self._count} "
                        f"divides, got one of {size}"
                    )
                return size
        raise ValueError(
            "torch.tpu.compile_step: accumulate needs a batch to split: a tensor among the "
            "arguments, with the batch as its first dimension"
        )

    def _hook(self, p: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
        def arrived(gradient: torch.Tensor) -> torch.Tensor:
            share = gradient / self._count
            _, before = self._sums.pop(id(p), (p, None))
            total = share if before is None else before + share
            if not self._last:
                self._sums[id(p)] = p, total
            return total

        return arrived

    @contextlib.contextmanager
    def _final(self) -> Iterator[None]:
        def complete(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            # Parameters that the last part did not use.
            for p, total in self._sums.values():
                p.grad = total if p.grad is None else p.grad + total
            self._sums.clear()

        handle = register_optimizer_step_pre_hook(complete)
        try:
            yield
        finally:
            handle.remove()

    def _after_the_one_before(self, pieces: list[Any]) -> list[Any]:
        """The compiler is not to have two parts' activations in memory at once."""
        places = [i for i, piece in enumerate(pieces) if isinstance(piece, torch.Tensor)]
        identities = list(self._sums)
        held = [self._sums[i][1] for i in identities] + [pieces[i] for i in places]
        flags = [t.requires_grad for t in held]
        with torch.no_grad():
            there = _C.StepTrace.barrier([t.detach() for t in held])
        for tensor, flag in zip(there, flags, strict=True):
            tensor.requires_grad_(flag)
        for identity, total in zip(identities, there, strict=False):
            self._sums[identity] = self._sums[identity][0], total
        pieces = list(pieces)
        for place, piece in zip(places, there[len(identities) :], strict=True):
            pieces[place] = piece
        return pieces


def _is_batch(leaf: object, size: int) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.dim() > 0 and leaf.shape[0] == size


def _parameters() -> list[torch.Tensor]:
    with torch._C.DisableTorchFunctionSubclass():
        return [p for p in _live_objects.leaves() if p.device.type == "tpu"]


@contextlib.contextmanager
def _held_back() -> Iterator[None]:
    """Optimizers, schedulers and gradient scalers do not step."""
    here = threading.get_ident()

    def unless_elsewhere(original: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            return None if threading.get_ident() == here else original(*args, **kwargs)

        return step

    with contextlib.ExitStack() as stack:
        for owner in live_objects(Optimizer, LRScheduler, GradScaler):
            is_scaler = issubclass(type(owner), GradScaler)
            for name in ("step", "unscale_", "update") if is_scaler else ("step",):
                missing = object()
                old = vars(owner).get(name, missing)
                setattr(owner, name, unless_elsewhere(getattr(owner, name)))
                if old is missing:
                    stack.callback(delattr, owner, name)
                else:
                    stack.callback(setattr, owner, name, old)
        yield


def _joined(results: list[Any], part: int) -> Any:
    flat = [pytree.tree_flatten(result) for result in results]
    spec = flat[-1][1]
    joined = []
    for values in zip(*(values for values, _ in flat), strict=True):
        last = values[-1]
        if not isinstance(last, torch.Tensor):
            joined.append(last)
        elif last.dim() == 0 and last.dtype != torch.bool:
            total = torch.stack([v.detach() for v in values]).sum()
            joined.append(total if not last.is_floating_point() else total / len(values))
        elif last.dim() > 0 and last.shape[0] == part:
            joined.append(torch.cat([v.detach() for v in values]))
        else:
            joined.append(last)
    return pytree.tree_unflatten(joined, spec)
