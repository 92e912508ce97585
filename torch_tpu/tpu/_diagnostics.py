"""What the device has done, and what does the work."""

from __future__ import annotations

from types import TracebackType
from typing import Literal, TypeAlias, TypedDict

from torch_tpu import _C

FallbackPolicy: TypeAlias = Literal["warn", "silent", "error"]


class DispatchStats(TypedDict):
    """Counters since the start of the process or the last reset."""

    ops: int
    """Operators dispatched to the device."""
    programs: int
    """Programs executed."""
    compiles: int
    """Programs compiled."""
    loads: int
    """Programs loaded from the cache instead."""
    cache_hits: int
    """Calls whose program was already in memory."""
    compile_seconds: float
    load_seconds: float
    """What the plugin took for the programs loaded."""
    fallbacks: dict[str, int]
    """Operators that ran on the CPU instead, and how often."""


def dispatch_stats() -> DispatchStats:
    """Counters of what was dispatched, compiled and computed on the CPU instead."""
    return _C.statistics()


def reset_dispatch_stats() -> None:
    """Let the counters of :func:`dispatch_stats` start from zero."""
    _C.reset_statistics()


class set_fallback:  # noqa: N801 - called like a function
    """What happens to an operator the device cannot compute.

    "warn" runs it on the CPU and says so once per operator, "silent" runs it there, "error" raises
    NotImplementedError. Takes effect at once; as a context manager it ends with the block.
    """

    def __init__(self, policy: FallbackPolicy) -> None:
        self._before: FallbackPolicy = _C.fallback_policy()
        _C.set_fallback_policy(policy)

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _C.set_fallback_policy(self._before)


def get_plugin_path() -> str:
    """The file of the PJRT plugin in use. Loads it if need be."""
    return _C.plugin_path()


def get_platform_name() -> str:
    """The plugin's platform: "tpu", or "cpu" where the device is emulated."""
    return _C.platform_name()


def get_platform_version() -> str:
    """The plugin's description of its version."""
    return _C.platform_version()
