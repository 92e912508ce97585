"""The suite "variants": an operator's other ways to be called, and inputs laid out otherwise.

The CPU is the reference for errors as well: where it raises, the device has to raise the same type.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.testing._internal.common_utils import noncontiguous_like

from torch_tpu.testing import databases, exceptions
from torch_tpu.testing.cases import DTYPES, Case, Options, Result
from torch_tpu.testing.operator_calls import Arguments, Checker, outcome
from torch_tpu.testing.placement import over_tensors, tensors_in

DTYPE_NAMES = ("float32", "bfloat16", "int64", "bool", "complex64")


def _transposed(tensor: torch.Tensor) -> torch.Tensor:
    """The same values, with the last two dimensions exchanged in memory."""
    return tensor.mT.contiguous().mT if tensor.ndim >= 2 else tensor


def _expanded(tensor: torch.Tensor) -> torch.Tensor:
    """The same shape, of one slice repeated along the first dimension."""
    if tensor.ndim == 0 or tensor.shape[0] == 0:
        return tensor
    return tensor.narrow(0, 0, 1).expand_as(tensor)


def _empty(tensor: torch.Tensor) -> torch.Tensor:
    """Nothing of the first dimension."""
    return tensor.narrow(0, 0, 0) if tensor.ndim else tensor


def _scalar(tensor: torch.Tensor) -> torch.Tensor:
    """One element, without dimensions."""
    return tensor.flatten()[0] if tensor.numel() else tensor


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "noncontiguous": noncontiguous_like,
    "transposed": _transposed,
    "expanded": _expanded,
    "empty": _empty,
    "0-d": _scalar,
}
_CALLS = ("method", "inplace", "out")


def _applies(info: Any, variant: str) -> bool:
    if variant == "method":
        return info.method_variant is not None
    if variant == "inplace":
        return info.inplace_variant is not None
    return variant in LAYOUTS or bool(info.supports_out)


def _arbitrary_when_expanded(name: str) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in exceptions.NOT_EXPANDED)


def cases() -> Iterator[Case]:
    """Every variant an operator has, with the dtypes the CPU has it for."""
    for dtype in DTYPE_NAMES:
        for variant in (*_CALLS, *LAYOUTS):
            for name, info in databases.operators().items():
                if not info.supports_dtype(DTYPES[dtype], "cpu") or not _applies(info, variant):
                    continue
                if variant != "expanded" or not _arbitrary_when_expanded(name):
                    yield Case("variants", name, variant, dtype)


def run(case: Case, options: Options) -> Result:
    """Runs a case."""
    info = databases.operators()[case.op]
    checker = Checker(case, info, options)

    def laid_out(tensor: torch.Tensor) -> torch.Tensor:
        if case.op in exceptions.CONTIGUOUS_INTEGERS and not tensor.is_floating_point():
            return tensor
        return LAYOUTS[case.variant](tensor)

    for sample in checker.samples():
        arguments = Arguments.of(sample)
        process = sample.output_process_fn_grad
        if case.variant == "method":
            if isinstance(arguments.input, torch.Tensor):
                checker.check(arguments, lambda a: a.call(info.method_variant), process)
        elif case.variant == "inplace":
            if isinstance(arguments.input, torch.Tensor) and not sample.broadcasts_input:
                checker.check(arguments, lambda a: a.call(info.inplace_variant), process)
                arguments.input = noncontiguous_like(arguments.input)
                checker.check(arguments, lambda a: a.call(info.inplace_variant), process)
        elif case.variant == "out":
            unsigned = _absolute if case.op in exceptions.NO_SIGN else _unchanged
            for with_out in _with_out(arguments, info.op):
                checker.check(with_out, _into_out(info.op), unsigned, errors_count=True)
        else:
            changed = outcome(lambda a=arguments: a.map(laid_out))  # type: ignore[misc]
            if isinstance(changed, Exception):
                checker.note("cannot be laid out so")
                continue
            checker.check(changed, lambda a: a.call(info.op), process, errors_count=True)
    return checker.finish()


def _unchanged(result: Any) -> Any:
    return result


def _absolute(result: Any) -> Any:
    return over_tensors(result, torch.abs)


def _into_out(function: Callable[..., Any]) -> Callable[[Arguments], Any]:
    """Calls a function and returns what it has written."""

    def run(arguments: Arguments) -> Any:
        plain = {name: value for name, value in arguments.kwargs.items() if name != "out"}
        written = arguments.kwargs["out"]
        arguments.call(function)
        if all(t.device.type == "cpu" for t in tensors_in(written)):
            result = Arguments(arguments.input, arguments.args, plain).call(function)
            dtypes = [[t.dtype for t in tensors_in(value)] for value in (written, result)]
            # Some of the CPU's kernels write in their own order, whatever the strides of `out`.
            if dtypes[0] == dtypes[1]:
                return over_tensors(result, lambda t: t.detach())
        return written

    return run


def _with_out(arguments: Arguments, function: Callable[..., Any]) -> Iterator[Arguments]:
    """The arguments with tensors to write to: right ones, and ones that do not fit."""
    result = outcome(lambda: arguments.on("cpu").call(function))
    tensors = tensors_in(result)
    if isinstance(result, Exception) or not tensors:
        return
    if any(t.layout is not torch.strided for t in tensors):
        return

    def like(change: Callable[[torch.Tensor], torch.Tensor]) -> Arguments:
        # Not the memory of the result, and nothing that could pass for it.
        fresh = over_tensors(result, lambda t: change(torch.zeros_like(t.detach())))
        if isinstance(fresh, tuple):
            fresh = tuple(fresh)
        return Arguments(arguments.input, arguments.args, {**arguments.kwargs, "out": fresh})

    yield like(lambda t: t)
    yield like(
        lambda t: _transposed(t) if t.ndim >= 2 else t.new_zeros(2 * t.numel())[::2].view_as(t)
    )
    yield like(lambda t: t.new_empty(0))
    if all(t.dtype in (torch.float32, torch.complex64) for t in tensors):
        yield like(lambda t: t.to(torch.complex128 if t.is_complex() else torch.float64))
        yield like(lambda t: t.to(torch.int64))
