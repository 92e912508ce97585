"""Keeps PyTorch from importing its compiler in processes that compile nothing with it.

PyTorch's optimizers, and the Python functions that say how large an operator's result is, import
``torch._dynamo`` (a second of the processor's time) to switch it off around them. ``torch._check``
imports symbolic shapes, and sympy with them, to ask whether True holds. While these modules are not
imported nothing has to be switched off and there are no symbols, so they are left alone here. When
PyTorch imports one all the same, its functions are again what they were.
"""

from __future__ import annotations

import builtins
import functools
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch
import torch._compile
from torch.optim import optimizer as optimizers
from torch.optim.optimizer import Optimizer

from torch_tpu.compiler.on_import import when_imported

_DYNAMO = "torch._dynamo"
_SYMBOLS = "torch.fx.experimental.symbolic_shapes"

Step = Callable[..., Any]


def install() -> None:
    """Idempotent only in a process that has not imported the compiler."""
    if _DYNAMO not in sys.modules:
        _call_as_they_are()
        _step_without_graph_breaks()
    if _SYMBOLS not in sys.modules:
        _check_plain_conditions()


def _call_as_they_are() -> None:
    """``torch._disable_dynamo``: what it wraps keeps the function to call as an attribute.

    The wrappers are made all over PyTorch; they have in common the module that their code is in,
    and ask for the attribute by a name of that module's.
    """
    module: Any = torch._compile

    def attribute(owner: Any, name: str, *default: Any) -> Any:
        if name == "__dynamo_disable" and _DYNAMO not in sys.modules:
            return owner
        return builtins.getattr(owner, name, *default)

    module.getattr = attribute
    when_imported(_DYNAMO, lambda _: delattr(module, "getattr"))


def _step_without_graph_breaks() -> None:
    """``step`` of PyTorch's optimizers breaks a graph, should one be recorded."""
    (code,) = (
        constant
        for constant in optimizers._use_grad_for_differentiable.__code__.co_consts
        if isinstance(constant, CodeType)
    )
    originals: dict[Step, Step] = {}
    for kind in _kinds(Optimizer):
        step = vars(kind).get("step")
        if isinstance(step, FunctionType) and step.__code__ is code:
            ours = _plain_step(step)
            originals[ours] = step
            setattr(kind, "step", ours)  # noqa: B010 - a method

    def put_back(_: ModuleType) -> None:
        for kind in _kinds(Optimizer):
            step: Any = vars(kind).get("step")
            if step in originals:
                setattr(kind, "step", originals[step])  # noqa: B010
            elif getattr(step, "__wrapped__", None) in originals:
                # With the hooks that it got when the first optimizer of the kind was made.
                hooked: Any = Optimizer.profile_hook_step(originals[step.__wrapped__])
                hooked.hooked = True
                setattr(kind, "step", hooked)  # noqa: B010

    when_imported(_DYNAMO, put_back)


def _plain_step(original: Any) -> Step:
    @functools.wraps(original.__wrapped__)
    def step(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        # A learning rate scheduler may have kept this function.
        if _DYNAMO in sys.modules:
            return original(self, *args, **kwargs)
        with torch.set_grad_enabled(self.defaults["differentiable"]):
            return original.__wrapped__(self, *args, **kwargs)

    return step


def _kinds(kind: type) -> Iterator[type]:
    below: type
    for below in kind.__subclasses__():
        yield below
        yield from _kinds(below)


def _check_plain_conditions() -> None:
    module: Any = torch
    original = module._check_with

    @functools.wraps(original)
    def check(error_type: type, cond: Any, message: Any) -> None:
        if cond is not True:
            original(error_type, cond, message)

    module._check_with = check
    when_imported(_SYMBOLS, lambda _: setattr(module, "_check_with", original))
