"""At which precision float32 numbers are multiplied."""

from __future__ import annotations

import enum
from contextlib import ContextDecorator
from types import TracebackType

from torch_tpu import _C
from torch_tpu._warnings import warn_at_user_line


class Precision(enum.StrEnum):
    """The levels of ``torch.set_float32_matmul_precision``, as a TPU has them.

    They say how products of float32 numbers are taken in matrix products, convolutions and what is
    made of these; sums are always float32.
    """

    MEDIUM = "medium"
    """One pass: the operands are rounded to bfloat16. The default on this device."""
    HIGH = "high"
    """Three passes: the operands keep 16 bits."""
    HIGHEST = "highest"
    """Six passes: float32."""


_PASSES = {Precision.HIGH: 3, Precision.HIGHEST: 6}


class precision(ContextDecorator):  # noqa: N801 - called like a function
    """Context manager: the level for the calls of this thread inside, whatever is set globally.

    A backward pass takes the level in force where ``backward()`` is called, not the one of its
    forward pass, as on CUDA.
    """

    def __init__(self, level: Precision | str) -> None:
        try:
            self._level = Precision(level)
        except ValueError:
            raise ValueError(
                f"precision: expected 'medium', 'high' or 'highest', got {level!r}"
            ) from None
        self._before: list[str | None] = []

    def __enter__(self) -> None:
        self._before.append(_C.thread_precision())
        _C.set_thread_precision(self._level.value)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _C.set_thread_precision(self._before.pop())


def current_precision() -> Precision:
    """The level for calls of this thread on this device.

    It differs from ``torch.get_float32_matmul_precision()`` inside of :class:`precision`, and when
    nobody has set a level: PyTorch's default is "highest", this device's "medium".
    """
    return Precision(_C.current_precision())


def warn_of_passes(level: str) -> None:
    """Say, at the line that made the call, what a level above the default costs."""
    warn_at_user_line(
        f"float32 matrix products at precision {level!r} take {_PASSES[Precision(level)]} passes "
        "of a TPU's matrix unit where 'medium', the default on this device, takes one. (Said once; "
        "to hide it, ignore warnings of category torch_tpu.PerformanceWarning.)"
    )
