"""Finding the operator that is at fault."""

from __future__ import annotations

from typing import Literal, TypeAlias

from torch_tpu.tpu._modes import EagerMode, SettingsContext, eager_mode

NanAction: TypeAlias = Literal["off", "raise", "warn"]
_ACTIONS: dict[str, int] = {"off": 0, "raise": 1, "warn": 2}


class check_nan(SettingsContext):  # noqa: N801 - called like a function
    """Name the first operator that makes a NaN or an infinity.

    The mode becomes ``EagerMode.DEFER_NEVER_AND_LAUNCH_BLOCKING``. An operator whose result is not
    finite although its inputs were raises a RuntimeError with the operator's name and its inputs'
    shapes and dtypes, in backward too; with ``action="warn"`` it is a warning and the work goes on.
    ``infinities=False`` looks for NaN alone.

    Called as a function it holds for all threads until ``check_nan("off")``, which leaves the mode
    as it is. As a context manager it holds for the block.
    """

    def __init__(self, action: NanAction = "raise", *, infinities: bool = True) -> None:
        """See the class."""
        if action not in _ACTIONS:
            raise ValueError(f"check_nan: expected 'raise', 'warn' or 'off', got {action!r}")
        mode = EagerMode.DEFER_NEVER_AND_LAUNCH_BLOCKING if action != "off" else eager_mode()
        settings = (int(mode), _ACTIONS[action], infinities)
        super().__init__(settings, settings)


__all__ = ["check_nan"]
