"""The suite "foreach": the operators on lists of tensors, `torch._foreach_*`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch_tpu.testing import databases
from torch_tpu.testing.cases import DTYPES, Case, Options, Result
from torch_tpu.testing.operator_calls import Arguments, Checker

DTYPE_NAMES = ("float32", "bfloat16", "int64", "complex64")


def _function(info: Any, variant: str) -> Callable[..., Any] | None:
    return info.inplace_variant if variant == "inplace" else info.method_variant


def cases() -> Iterator[Case]:
    """Every operator, functional and in place."""
    for dtype in DTYPE_NAMES:
        for variant in ("function", "inplace"):
            for name, info in databases.foreach_operators().items():
                if info.supports_dtype(DTYPES[dtype], "cpu") and _function(info, variant):
                    yield Case("foreach", name, variant, dtype)


def run(case: Case, options: Options) -> Result:
    """Runs a case."""
    info = databases.foreach_operators()[case.op]
    checker = Checker(case, info, options)
    function = _function(info, case.variant)
    assert function is not None

    def call(arguments: Arguments) -> Any:
        result = arguments.call(function)
        # In-place ones return nothing.
        return arguments.input if result is None or case.variant == "inplace" else result

    for sample in checker.samples():
        checker.check(Arguments.of(sample), call)
    return checker.finish()
