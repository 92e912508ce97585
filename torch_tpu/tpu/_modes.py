"""When operators run: at once, at once and checked, or later and together."""

from __future__ import annotations

import enum
from types import TracebackType
from typing import TypeAlias

from torch_tpu import _C

# The engine's settings: mode, what check_nan does, whether infinities count for it.
Settings: TypeAlias = tuple[int, int, bool]


class EagerMode(enum.IntEnum):
    """When an operator runs, once it has been called."""

    DEFER_NEVER = 0
    """Strict: dispatched at once, asynchronously. The default."""
    DEFER_NEVER_AND_LAUNCH_BLOCKING = 1
    """Debug: values are checked as the CPU does before each operator, and its results waited for.

    Errors are raised by the Python line that caused them. Results are those of DEFER_NEVER.
    """
    DEFER_AND_FUSE = 2
    """Recorded, and run together with other operators as one program."""

    def __str__(self) -> str:
        return f"EagerMode.{self.name}"


class SettingsContext:
    """Changes the default settings, or, entered, puts it back and holds for the block.

    The block's thread has the settings, and the autograd threads that work for it.
    """

    def __init__(self, default: Settings, block: Settings) -> None:
        """Make `default` what holds outside of all contexts; `block` is for use as one."""
        self._before: Settings | None = _C.default_eager_settings()
        self._block = block
        _C.set_default_eager_settings(default)

    def __enter__(self) -> None:
        if self._before is not None:
            _C.set_default_eager_settings(self._before)
            self._before = None
        _C.enter_eager_settings(self._block)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _C.leave_eager_settings()


def _check_mode(mode: object) -> None:
    if not isinstance(mode, EagerMode):
        choices = ", ".join(f"torch.tpu.EagerMode.{m.name}" for m in EagerMode)
        raise TypeError(f"set_eager_mode: expected one of {choices}, got {mode!r}")


class set_eager_mode(SettingsContext):  # noqa: N801 - called like a function
    """Set when operators run.

    Called as a function it sets the default of all threads. As a context manager it holds for the
    block, on this thread and for ``backward()`` called in it; contexts nest, and go before the
    default.
    """

    def __init__(self, mode: EagerMode) -> None:
        """Accept a mode, not a number or a name."""
        _check_mode(mode)
        default, current = _C.default_eager_settings(), _C.current_eager_settings()
        super().__init__((int(mode), *default[1:]), (int(mode), *current[1:]))


def eager_mode() -> EagerMode:
    """The mode that holds for the calling thread."""
    return EagerMode(_C.current_eager_settings()[0])
