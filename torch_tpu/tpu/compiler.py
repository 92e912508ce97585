"""Options of the compiler (``torch.tpu.compiler``)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar

from torch_tpu import _C

Options = Mapping[str, bool | int | float | str]

_NONE: Options = {}
_options: ContextVar[Options] = ContextVar("torch_tpu_compiler_options", default=_NONE)


@contextlib.contextmanager
def custom_compiler_options(options: Options) -> Iterator[None]:
    """Compiles the graphs that `torch.compile` captures in this scope with XLA's flags.

    Args:
        options: Flags by their names, e.g. ``{"xla_tpu_enable_latency_hiding_scheduler": True}``.
            Scopes inside one another add up, the inner one's value counts. So do the ``options`` of
            `torch.compile`, which count most.

    Raises:
        RuntimeError: The compiler does not take an option. This starts the device.

    A graph keeps the flags it was captured with: its backward too, and later calls outside of the
    scope. Operators that run eagerly are not concerned.
    """
    _C.check_compile_options(dict(options))
    token = _options.set({**_options.get(), **options})
    try:
        yield
    finally:
        _options.reset(token)


def current_compiler_options() -> dict[str, bool | int | float | str]:
    """The options of the scopes around."""
    return dict(_options.get())


__all__ = ["current_compiler_options", "custom_compiler_options"]
