"""PyTorch's own decompositions, for operators without a lowering rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_tpu import _C


def run(name: str, overload: str, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Run PyTorch's decomposition of ``name.overload`` on ``args`` (in schema order).

    An in-place or ``out=`` operator without one is computed by that of its functional variant and
    copied. Returns a tuple of the operator's results, or None when there is no decomposition.
    """
    from torch._decomp import decomposition_table

    namespace, _, operator = name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), operator)
    op = getattr(packet, overload or "default")
    function = decomposition_table.get(op)
    written = [i for i, argument in enumerate(op._schema.arguments) if argument.is_write]
    if function is not None:
        result = _call(function, op, args)
    elif written:
        functional = _functional_variant(op, written)
        if functional is None:
            return None
        outs = [args[i] for i in written]
        arguments = tuple(args[: len(functional._schema.arguments)])
        values = _results(functional, _call(decomposition_table[functional], functional, arguments))
        for out, value in zip(outs, values, strict=True):
            if out.shape != value.shape and op._schema.arguments[written[0]].is_out:
                out.resize_(value.shape)
            out.copy_(value)
        return tuple(outs) if op._schema.returns else ()
    else:
        return None
    return _results(op, result)


def _results(op: Any, result: Any) -> tuple[Any, ...]:
    if len(op._schema.returns) == 1:
        return (result,)
    return tuple(result) if result is not None else ()


def _call(function: Callable[..., Any], op: Any, args: tuple[Any, ...]) -> Any:
    positional: list[Any] = []
    keyword: dict[str, Any] = {}
    for argument, value in zip(op._schema.arguments, args, strict=True):
        if argument.kwarg_only:
            keyword[argument.name] = value
        else:
            positional.append(value)
    # A user's own decomposition may be another one in the next process.
    if getattr(function, "__module__", "").partition(".")[0] not in ("torch", "torch_tpu"):
        _C.do_not_record()
    return function(*positional, **keyword)


def _functional_variant(op: Any, written: list[int]) -> Any | None:
    """The operator with a decomposition that takes the same arguments and writes to none of them.

    An out= operator takes its results after the others' arguments; an in-place one its first.
    """
    from torch._decomp import decomposition_table

    arguments = op._schema.arguments
    outs = [i for i in written if arguments[i].is_out]
    if outs not in ([], written) or (not outs and written != [0]):
        return None
    inputs = [a for a in arguments if not a.is_out]
    name = op._schema.name if outs else op._schema.name.removesuffix("_")
    namespace, _, operator = name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), operator, None)
    for overload in packet.overloads() if packet is not None else ():
        other = getattr(packet, overload)
        others = other._schema.arguments
        if (
            other in decomposition_table
            and not any(a.is_write for a in others)
            and [(a.name, str(a.type)) for a in others] == [(a.name, str(a.type)) for a in inputs]
            and len(other._schema.returns) == len(written)
        ):
            return other
    return None
