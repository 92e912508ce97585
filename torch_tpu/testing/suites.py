"""The suites by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch_tpu.testing import (
    compiled_calls,
    errors,
    foreach,
    forward,
    gradients,
    module_calls,
    optimizer_steps,
    variants,
)
from torch_tpu.testing.cases import Case, Options, Result

SUITES: dict[str, tuple[Callable[[], Iterator[Case]], Callable[[Case, Options], Result]]] = {
    "forward": (forward.cases, forward.run),
    "foreach": (foreach.cases, foreach.run),
    "variants": (variants.cases, variants.run),
    "gradients": (gradients.cases, gradients.run),
    "errors": (errors.cases, errors.run),
    "modules": (module_calls.cases, module_calls.run),
    "optimizers": (optimizer_steps.cases, optimizer_steps.run),
    "compile": (compiled_calls.cases, compiled_calls.run),
}
