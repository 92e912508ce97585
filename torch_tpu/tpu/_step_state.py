"""The state of optimizers that have not stepped yet."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode


def make_state(optimizer: Optimizer) -> None:
    """Gives an optimizer the state that its first step would begin with.

    PyTorch's optimizers make it in ``_init_group``, which also lists what the step is about. Others
    are left as they are.
    """
    init = getattr(optimizer, "_init_group", None)
    if init is None:
        return
    lists = [
        p for p in list(inspect.signature(init).parameters.values())[1:] if p.default is p.empty
    ]
    with torch.no_grad(), _LikeUnread():
        for group in optimizer.param_groups:
            init(group, *([] for _ in lists))
            if type(optimizer) is torch.optim.SGD:
                _begin_momentum(optimizer, group)


def _begin_momentum(optimizer: Optimizer, group: dict[str, Any]) -> None:
    """SGD begins with the first gradient: what zeros give too, unless that is damped."""
    if group["momentum"] == 0 or group["dampening"] != 0:
        return
    for p in group["params"]:
        if p.grad is not None and optimizer.state[p].get("momentum_buffer") is None:
            optimizer.state[p]["momentum_buffer"] = torch.zeros_like(p)


class _LikeUnread(TorchFunctionMode):
    """Tensors like a parameter are made without it, which has no value while a step is traced."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in ("zeros_like", "ones_like", "full_like") and args[0].device.type == "tpu":
            strided = torch.empty_like(args[0].detach(), **kwargs)
            value = {"zeros_like": 0, "ones_like": 1}.get(name)
            return strided.fill_(args[1] if value is None else value)
        if name == "new_zeros" and args[0].device.type == "tpu":
            like = {"dtype": args[0].dtype, "device": args[0].device}
            return torch.zeros(*args[1:], **like | kwargs)
        return func(*args, **kwargs)


def counts(optimizer: Optimizer) -> list[list[torch.Tensor]]:
    """The entries of its state that are one number, such as counts of steps, of each name.

    Steps are counted for all groups; other numbers may follow from the settings of a group. What
    has a parameter's form is no such entry, though some parameters are one number: they are equal
    only before the first step.
    """
    entries: dict[tuple[str, int], list[torch.Tensor]] = {}
    for place, group in enumerate(optimizer.param_groups):
        for p in group["params"]:
            state = optimizer.state.get(p)
            for name, value in state.items() if isinstance(state, dict) else ():
                if isinstance(value, torch.Tensor):
                    key = name, 0 if name == "step" else place
                    entries.setdefault(key, []).append(value)
    return [values for values in entries.values() if all(value.numel() == 1 for value in values)]
