"""What a training step was compiled for, and its program."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from torch_tpu import _C
from torch_tpu.tpu._step_numbers import Read

PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)


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

    def restored(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args, kwargs = pytree.tree_unflatten(self.leaves, self.spec)
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
    # Optimizers with the number of their groups.
    optimizers: list[tuple[Optimizer, int]]
    # Variables of functions that hold them.
    cells: list[tuple[types.CellType, Optimizer]]
    # What gives the program's numbers, and what has to hold of them.
    reads: list[Read]
    conditions: list[tuple[Callable[[], bool], bool]]
    # What p.grad is afterwards, where it changes.
    gradients: list[tuple[torch.Tensor, torch.Tensor | None]]
    # Calls the step made that run on the host, afterwards: a bound method, its arguments with the
    # tensors replaced by places among the results.
    after: list[tuple[Callable[..., Any], Any]]
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

    def why_not(self) -> str | None:
        """What is not as it was when the step was traced."""
        for optimizer, groups in self.optimizers:
            if len(optimizer.param_groups) != groups:
                return f"the number of {type(optimizer).__name__}'s parameter groups"
        for cell, optimizer in self.cells:
            if _contents(cell) is not optimizer:
                return "an optimizer is another one"
        for outcome, traced in self.conditions:
            if bool(outcome()) != traced:
                return "what an optimizer decides by one of its settings"
        return self.guards.check()

    def run(self, inputs: list[torch.Tensor], new: str | None = None) -> tuple[Any] | None:
        """Runs the program; None when it is not for these inputs.

        `new` says why there is the program, at its first run.
        """
        results = self.program.run(inputs, [read() for read in self.reads], new)
        if results is None:
            return None
        for tensor, gradient in self.gradients:
            tensor.grad = gradient
        returned = iter(results[: self.num_results])
        leaves = [next(returned) if leaf is RESULT else leaf for leaf in self.leaves]
        extra = results[self.num_results :]
        for method, arguments in self.after:
            args, kwargs = pytree.tree_map(
                lambda value: extra[value.index] if isinstance(value, Place) else value, arguments
            )
            method(*args, **kwargs)
        return (pytree.tree_unflatten(leaves, self.spec),)


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # the variable has been deleted
        return None


class Place:
    def __init__(self, index: int) -> None:
        self.index = index


RESULT = object()
