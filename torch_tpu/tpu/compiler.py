"""Options of the compiler (``torch.tpu.compiler``)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any

from torch_tpu import _C
from torch_tpu.tpu._compiler_options import OPTIONS, Option, split

Options = Mapping[str, Any]

_NONE: Options = {}
_options: ContextVar[Options] = ContextVar("torch_tpu_compiler_options", default=_NONE)


@contextlib.contextmanager
def custom_compiler_options(options: Options) -> Iterator[None]:
    """Compiles what `torch.compile` and `compile_step` capture in this scope with these options.

    Args:
        options: XLA's flags by their names, e.g.
            ``{"xla_tpu_enable_latency_hiding_scheduler": True}``, and our own, see ``OPTIONS``.
            Scopes inside one another add up, the inner one's value counts. So do the ``options`` of
            `torch.compile`, which count most.

    Raises:
        RuntimeError: The compiler does not take a flag. This starts the device.
        TypeError: An option of ours has a value of another type.
        ValueError: There is no option of that name.

    A graph keeps the flags it was captured with: its backward too, and later calls outside of the
    scope. Operators that run eagerly are not concerned.
    """
    _, flags = split(options, "torch.tpu.compiler.custom_compiler_options")
    _C.check_compile_options(flags)
    token = _options.set({**_options.get(), **options})
    try:
        yield
    finally:
        _options.reset(token)


def current_compiler_options() -> dict[str, Any]:
    """The options of the scopes around."""
    return dict(_options.get())


__all__ = ["OPTIONS", "Option", "current_compiler_options", "custom_compiler_options"]
