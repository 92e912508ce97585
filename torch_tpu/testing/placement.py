"""Copies arguments to a device, keeping how each tensor views its storage."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch


def over_tensors(value: Any, function: Callable[[torch.Tensor], Any]) -> Any:
    """`value` with `function` applied to the tensors inside nested tuples, lists and dicts."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(over_tensors(item, function) for item in value))
    if isinstance(value, (list, tuple)):
        return type(value)(over_tensors(item, function) for item in value)
    if isinstance(value, dict):
        return {key: over_tensors(item, function) for key, item in value.items()}
    return value


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors inside nested tuples, lists and dicts, in order."""
    found: list[torch.Tensor] = []
    over_tensors(value, found.append)
    return found


def copy_to(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """A copy with the same sizes, strides and offset, in a storage of its own."""
    source = tensor.detach()
    if source.is_meta:
        return source
    if source.layout is not torch.strided or source.is_quantized or source.is_nested:
        return source.to(device, copy=True)
    if source.is_conj() or source.is_neg():
        conjugate, negative = source.is_conj(), source.is_neg()
        if negative:
            source = torch._neg_view(source)
        if conjugate:
            source = source.conj()
        physical = copy_to(source, device)
        physical = physical.conj() if conjugate else physical
        return torch._neg_view(physical) if negative else physical
    size, stride, offset = source.size(), source.stride(), source.storage_offset()
    if source.numel() == 0:
        return torch.empty_strided(size, stride, dtype=source.dtype, device=device)
    last = sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    whole = source.as_strided((offset + last + 1,), (1,), 0)
    return whole.to(device, copy=True).as_strided(size, stride, offset)


def placed(value: Any, device: str, requires_grad: bool = False) -> Any:
    """A copy of arguments for `device`: its tensors, and the devices named among them.

    With `requires_grad`, tensors that required a gradient become leaves that do.
    """
    if isinstance(value, torch.Tensor):
        moved = copy_to(value, device)
        return moved.requires_grad_() if requires_grad and value.requires_grad else moved
    if isinstance(value, torch.nn.Module):
        return copy.deepcopy(value).to(device)
    if isinstance(value, torch.device) and value.type == "cpu":
        return torch.device(device)
    if isinstance(value, str) and value == "cpu":
        return device
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(placed(item, device, requires_grad) for item in value))
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return type(value)(placed(item, device, requires_grad) for item in value)
    if isinstance(value, dict):
        return {key: placed(item, device, requires_grad) for key, item in value.items()}
    return value


def described(value: Any) -> str:
    """Arguments in a line: tensors by dtype, shape and, unless contiguous, strides."""
    if isinstance(value, torch.Tensor):
        text = f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
        if value.layout is not torch.strided:
            return f"{value.layout} {text}"
        return text if value.is_contiguous() else f"{text} strides {list(value.stride())}"
    if isinstance(value, (list, tuple)):
        return "(" + ", ".join(described(item) for item in value) + ")"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {described(item)}" for key, item in value.items()) + "}"
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
