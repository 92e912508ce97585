"""PyTorch's own decompositions, for operators without a lowering rule."""

from __future__ import annotations

from typing import Any

import torch


def run(name: str, overload: str, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Run PyTorch's decomposition of ``name.overload`` on ``args`` (in schema order).

    Returns a tuple of the operator's results, or None when there is no decomposition.
    """
    from torch._decomp import decomposition_table

    namespace, _, operator = name.partition("::")
    op = getattr(getattr(getattr(torch.ops, namespace), operator), overload or "default")
    function = decomposition_table.get(op)
    if function is None:
        return None
    positional: list[Any] = []
    keyword: dict[str, Any] = {}
    for argument, value in zip(op._schema.arguments, args, strict=True):
        if argument.kwarg_only:
            keyword[argument.name] = value
        else:
            positional.append(value)
    result = function(*positional, **keyword)
    if len(op._schema.returns) == 1:
        return (result,)
    return tuple(result) if result is not None else ()
