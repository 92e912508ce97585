"""The suite "errors": calls that must fail, with the CPU's exception and message."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

from torch_tpu.testing import databases
from torch_tpu.testing.cases import Case, Options, Result
from torch_tpu.testing.operator_calls import Arguments, Checker


def cases() -> Iterator[Case]:
    """Every operator whose entry has wrong calls."""
    for name, info in databases.operators().items():
        if info.error_inputs_func is not None:
            yield Case("errors", name, "function", "float32")


def run(case: Case, options: Options) -> Result:
    """Runs a case."""
    info = databases.operators()[case.op]
    checker = Checker(case, info, options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrong = checker.some_of(list(info.error_inputs("cpu")))
    for item in wrong:
        checker.check(
            Arguments.of(item.sample_input),
            lambda a: a.call(info.op),
            errors_count=True,
            error_pattern=item.error_regex,
        )
    return checker.finish()
