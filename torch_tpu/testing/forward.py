"""The suite "forward": an operator's samples, called as a function."""

from __future__ import annotations

from collections.abc import Iterator

from torch_tpu.testing import databases
from torch_tpu.testing.cases import DTYPES, Case, Options, Result
from torch_tpu.testing.operator_calls import Arguments, Checker

DTYPE_NAMES = (
    "float32",
    "bfloat16",
    "float16",
    "float64",
    "int64",
    "int32",
    "uint8",
    "bool",
    "complex64",
    "float8_e4m3fn",
    "float8_e5m2",
)


def cases() -> Iterator[Case]:
    """Every operator with every dtype its entry says the CPU has it for."""
    for dtype in DTYPE_NAMES:
        for name, info in databases.operators().items():
            if info.supports_dtype(DTYPES[dtype], "cpu"):
                yield Case("forward", name, "function", dtype)


def run(case: Case, options: Options) -> Result:
    """Runs a case."""
    info = databases.operators()[case.op]
    checker = Checker(case, info, options)
    for sample in checker.samples():
        checker.check(
            Arguments.of(sample), lambda a: a.call(info.op), sample.output_process_fn_grad
        )
    return checker.finish()
