"""Figures in words."""

from __future__ import annotations

from torch_tpu.byte_sizes import in_bytes


def peak_of(peak: int | None, device_memory: int | None) -> str:
    """The memory that is in use at most, and the part of the device's that it is."""
    if peak is None or not device_memory:
        return in_bytes(peak)
    return f"{in_bytes(peak)} of {in_bytes(device_memory)} ({peak / device_memory:.1%})"


def scaled(value: float | None, unit: str) -> str:
    """A number with the unit's prefix, e.g. "1.5 GFLOP"."""
    if value is None:
        return "not known"
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1, "")):
        if value >= factor:
            return f"{value / factor:.3g} {prefix}{unit}"
    for factor, prefix in ((1e-3, "m"), (1e-6, "µ")):
        if value >= factor:
            return f"{value / factor:.3g} {prefix}{unit}"
    return f"{value / 1e-9:.3g} n{unit}" if value else f"0 {unit}"
