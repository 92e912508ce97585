"""What a training step was compiled for, and its program."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils import _pytree as pytree

from torch_tpu import _C
from torch_tpu.tpu._step_numbers import Read
from torch_tpu.tpu._step_reach import Held

PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)

# A number on the host: where it is, and what gives the new one.
Update = tuple[Held, Callable[[], Any]]


class Arguments:
    """A call's arguments: tensors apart from the rest."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        leaves, self.spec = pytree.tree_flatten((args, kwargs))
        self.leaves = [
            leaf.to("tpu") if isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu" else leaf
            for leaf in leaves
        ]
        self.tensors = [leaf for leaf in self.leaves if isinstance(leaf, torch.Tensor)]
        rest = tuple(
            None
            if isinstance(leaf, torch.Tensor)
            else (type(leaf), leaf)
            if isinstance(leaf, PLAIN)
            else id(leaf)
            for leaf in self.leaves
        )
        self.key = (
            self.spec,
            rest,
            torch.is_grad_enabled(),
            torch.is_autocast_enabled("tpu"),
            torch.get_autocast_dtype("tpu"),
        )

    def restored(
        self, instead: Callable[[Any], Any] = lambda leaf: leaf
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args, kwargs = pytree.tree_unflatten(map(instead, self.leaves), self.spec)
        return args, kwargs

    def forms(self) -> list[tuple[str, tuple[int, ...], bool]]:
        """Of each tensor: dtype and sizes, strides, and whether it requires a gradient."""
        return [
            (
                f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}",
                t.stride(),
                t.requires_grad,
            )
            for t in self.tensors
        ]


class Entry:
    """A program, and what it was made for."""

    key: Any
    # Those of the arguments' tensors.
    forms: list[tuple[str, tuple[int, ...], bool]]
    guards: _C.StepGuards
    program: _C.StepProgram
    # Objects whose identity is part of the key, so that no other takes their place.
    objects: list[Any]
    # Optimizers with their state and groups, and how many these are.
    optimizers: list[tuple[weakref.ref[Optimizer], Any, list[Any], int]]
    # Where variables and entries of dictionaries hold what steps. None of that is kept alive.
    holders: list[tuple[Held, weakref.ref[Any]]]
    # What gives the program's numbers, and what has to hold of them.
    reads: list[Read]
    conditions: list[tuple[Callable[[], bool], bool]]
    # What p.grad is afterwards, where it changes; it may be among the results.
    gradients: list[tuple[torch.Tensor, torch.Tensor | Place | None]]
    # Those the step begins with, if they are to be the very tensors of the traced call.
    gradients_of_before: list[tuple[torch.Tensor, torch.Tensor]]
    # Schedulers that the step has stepped, which is done on the host, afterwards: their arguments
    # with the tensors replaced by places among the results.
    after: list[tuple[weakref.ref[LRScheduler], Any]]
    # Why it is good for the traced call only, if it is; whether the next one is to be traced, too.
    once: str | None
    again: bool
    # Numbers on the host that the step changes: where they are, and what gives the new ones.
    updates: list[Update]
    num_results: int
    leaves: list[Any]
    spec: Any

    def other_arguments(self, arguments: Arguments) -> str:
        """In which way a call's arguments are not those of the traced one."""
        if self.key[0] != arguments.key[0]:
            return "its arguments: how many there are, or what they are in"
        if self.key[1] != arguments.key[1]:
            return "its arguments: one that is no tensor"
        if self.key != arguments.key:
            return "autocast or the grad mode around the call"
        names = ("is", "has strides", "has requires_grad")
        for place, (now, was) in enumerate(zip(arguments.forms(), self.forms, strict=True)):
            for name, a, b in zip(names, now, was, strict=True):
                if a != b:
                    return f"its arguments: tensor {place} {name} {a}, was {b}"
        return "its arguments: how they are laid out on the device, or which share memory"

    def gradients_have_moved(self) -> bool:
        """Whether the step begins with other tensors as gradients than in the traced call."""
        return any(
            tensor.grad is not None and tensor.grad is not gradient
            for tensor, gradient in self.gradients_of_before
        )

    def other_holder(self) -> str | None:
        """Whether a variable holds another optimizer or scheduler than in the traced call."""
        for holder, known in self.holders:
            value = known()
            if value is None or holder.now() is not value:
                return f"{holder.what} is another one"
        return None

    def orphaned(self) -> bool:
        """Whether an optimizer or scheduler is no more."""
        return any(known() is None for known, *_ in self.optimizers) or any(
            known() is None for known, _ in self.after
        )

    def obsolete(self) -> bool:
        """Whether something has been replaced, so that the program will not be used again."""
        return (
            self.orphaned()
            or any(
                getattr(known(), "state", None) is not state
                or getattr(known(), "param_groups", None) is not groups
                for known, state, groups, _ in self.optimizers
            )
            or self.guards.obsolete()
        )

    def why_not(self) -> str | None:
        """What is not as it was when the step was traced."""
        for known, state, groups, count in self.optimizers:
            optimizer = known()
            if optimizer is None:
                return "an optimizer is another one"
            if optimizer.state is not state:
                return "state is another one"
            if optimizer.param_groups is not groups:
                return "param_groups is another one"
            if len(groups) != count:
                return f"the number of {type(optimizer).__name__}'s parameter groups"
        other = self.other_holder()
        if other:
            return other
        for outcome, traced in self.conditions:
            if bool(outcome()) != traced:
                return "what is decided by a number: a setting of an optimizer, or a count"
        return self.guards.check()

    def run(self, inputs: list[torch.Tensor], new: str | None = None) -> tuple[Any] | None:
        """Runs the program; None when it is not for these inputs.

        `new` says why there is the program, at its first run.
        """
        updates = [(held, read()) for held, read in self.updates]
        leaves = [leaf.read() if type(leaf) is Later else leaf for leaf in self.leaves]
        results = self.program.run(inputs, [read() for read in self.reads], new)
        if results is None:
            return None
        for held, number in updates:
            held.put(number)
        extra = results[self.num_results :]
        for tensor, gradient in self.gradients:
            tensor.grad = extra[gradient.index] if isinstance(gradient, Place) else gradient
        returned = iter(results[: self.num_results])
        leaves = [next(returned) if leaf is RESULT else leaf for leaf in leaves]
        for scheduler, arguments in self.after:
            args, kwargs = pytree.tree_map(
                lambda value: extra[value.index] if isinstance(value, Place) else value, arguments
            )
            step = scheduler()
            if step is not None:
                step.step(*args, **kwargs)
        return (pytree.tree_unflatten(leaves, self.spec),)


class Place:
    def __init__(self, index: int) -> None:
        self.index = index


class Later:
    """A number among the results that is another one at every call."""

    def __init__(self, read: Callable[[], Any]) -> None:
        self.read = read


RESULT = object()
