"""Numbers of bytes in words."""

from __future__ import annotations


def in_bytes(count: float | None) -> str:
    """A number of bytes, e.g. "1.5 MiB"."""
    if count is None:
        return "not known"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
