"""The suite "compile": an operator's sample through ``torch.compile``, forward and backward.

No backend is named: what is compiled is what a user's call compiles.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch

from torch_tpu import PerformanceWarning
from torch_tpu.testing import databases
from torch_tpu.testing.cases import DTYPES, Case, Options, Result
from torch_tpu.testing.forward import DTYPE_NAMES
from torch_tpu.testing.gradients import differentiated
from torch_tpu.testing.operator_calls import Arguments, Checker, error_text, outcome
from torch_tpu.testing.placement import tensors_in


def cases() -> Iterator[Case]:
    """Every operator in float32, or in the first other dtype that it has; gradients in float32."""
    for name, info in databases.operators().items():
        dtype = next((d for d in DTYPE_NAMES if info.supports_dtype(DTYPES[d], "cpu")), None)
        if dtype is not None:
            yield Case("compile", name, "forward", dtype)
    for name, info in databases.operators().items():
        if torch.float32 in info.supported_backward_dtypes("cpu") and info.supports_dtype(
            torch.float32, "cpu"
        ):
            yield Case("compile", name, "backward", "float32")


def _is_on(device: str, arguments: Arguments) -> bool:
    named = arguments.kwargs.get("device")
    tensors = tensors_in((arguments.input, arguments.args, arguments.kwargs))
    return any(t.device.type == device for t in tensors) or (
        named is not None and torch.device(named).type == device
    )


def _compiled(function: Callable[..., Any], backend: str | None) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    torch.compiler.reset()
    options: dict[str, Any] = {} if backend is None else {"backend": backend}
    return torch.compile(call, fullgraph=True, **options)


def _noted(function: Callable[..., Any], checker: Checker) -> Callable[..., Any]:
    """Counts calls whose graph was not one program."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always", PerformanceWarning)
            result = function(*args, **kwargs)
        if any("is not one program" in str(warning.message) for warning in said):
            checker.note("not one program")
        return result

    return call


def _without_seeds() -> contextlib.AbstractContextManager[Any]:
    """Makes entries that set a seed around the operator call only the operator.

    Dynamo does not trace how they save and restore the state of the generators.
    """

    def call(op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return op(*args, **kwargs)

    return mock.patch(f"{databases.__name__}.common_methods_invocations.wrapper_set_seed", call)


def _gradients(info: Any, arguments: Arguments, function: Callable[..., Any], process: Any) -> Any:
    leaves = [
        t
        for t in tensors_in((arguments.input, arguments.args, arguments.kwargs))
        if t.requires_grad
    ]
    outputs = process(
        arguments.call(lambda *args, **kwargs: info.gradcheck_wrapper(function, *args, **kwargs))
    )
    return differentiated(outputs, leaves, twice=False)


def run(case: Case, options: Options) -> Result:
    """Runs a case: one sample, unless more are asked for.

    What PyTorch cannot trace as one graph for the CPU either, with a backend that compiles
    nothing, does not apply.
    """
    info = databases.operators()[case.op]
    backward = case.variant == "backward"
    # Compared as an uncompiled call is.
    same = dataclasses.replace(case, suite="gradients" if backward else "forward")
    checker = Checker(same, info, options)
    checker.result.case = case
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        samples = list(info.sample_inputs("cpu", checker.dtype, requires_grad=backward))
    wanted = options.samples or 1
    for sample in samples:

        def call(arguments: Arguments, sample: Any = sample) -> Any:
            on_device = _is_on(options.device, arguments)
            function = _noted(_compiled(info.op, None), checker) if on_device else info.op
            if not backward:
                return arguments.call(function)
            return _gradients(info, arguments, function, sample.output_process_fn_grad)

        arguments = Arguments.of(sample)
        failed = checker.result.failed
        with _without_seeds():
            checker.check(
                arguments,
                call,
                (lambda x: x) if backward else sample.output_process_fn_grad,
                requires_grad=backward,
            )
            if checker.result.failed > failed:
                limit = _limit(info, arguments)
                if limit:
                    return _not_traced(checker, failed, limit)
        if checker.result.samples >= wanted:
            break
    return checker.finish()


def _limit(info: Any, arguments: Arguments) -> str:
    """Why PyTorch cannot trace a call as one graph, on the CPU and compiling nothing; or ""."""
    compiled = _compiled(info.op, "eager")
    traced = outcome(lambda: arguments.on("cpu").call(compiled))
    return error_text(traced) if isinstance(traced, Exception) else ""


def _not_traced(checker: Checker, failed: int, limit: str) -> Result:
    """The result without the last sample; `failed` others did."""
    result = checker.result
    result.samples -= 1
    result.failed = failed
    del result.failures[failed:]
    return checker.finish() if result.samples else checker.skip(f"PyTorch cannot trace it: {limit}")
