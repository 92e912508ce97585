"""How much device memory is used.

Nothing is cached: memory is allocated when a result is computed and given back with the last
tensor that holds it. So what is reserved is what is allocated.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch

from torch_tpu import _C
from torch_tpu.byte_sizes import in_bytes
from torch_tpu.tpu._utils import Device, _get_device_index


def memory_stats(device: Device = None) -> OrderedDict[str, Any]:
    """All counters, under the names ``torch.accelerator.memory_stats`` documents."""
    return torch.accelerator.memory_stats(_get_device_index(device, optional=True))


def memory_summary(device: Device = None, abbreviated: bool = False) -> str:
    """The counters as a table to print.

    Args:
        device: The current one if None.
        abbreviated: Taken as ``torch.cuda.memory_summary`` does; there is nothing to leave out.
    """
    index = _get_device_index(device, optional=True)
    stats = memory_stats(index)
    free, total = mem_get_info(index)
    columns = ("current", "peak", "allocated", "freed")
    titles = ("current", "peak", "total allocated", "total freed")
    lines = [f"Memory of tpu:{index}: {in_bytes(total - free)} of {in_bytes(total)} in use"]
    lines.append(f"{'':8}" + "".join(f"{title:>17}" for title in titles))
    for name, area, shown in (
        ("bytes", "allocated_bytes", in_bytes),
        ("arrays", "allocation", lambda count: f"{count:,}"),
    ):
        figures = (shown(stats[f"{area}.all.{column}"]) for column in columns)
        lines.append(f"{name:8}" + "".join(f"{figure:>17}" for figure in figures))
    lines.append(f"out of memory: {stats['num_ooms']:,} times")
    return "\n".join(lines) + "\n"


def memory_allocated(device: Device = None) -> int:
    """The bytes that live arrays take."""
    return torch.accelerator.memory_allocated(_get_device_index(device, optional=True))


def max_memory_allocated(device: Device = None) -> int:
    """The most bytes that were allocated since the start or the last reset of the peak."""
    return torch.accelerator.max_memory_allocated(_get_device_index(device, optional=True))


def memory_reserved(device: Device = None) -> int:
    """The same as :func:`memory_allocated`."""
    return torch.accelerator.memory_reserved(_get_device_index(device, optional=True))


def max_memory_reserved(device: Device = None) -> int:
    """The same as :func:`max_memory_allocated`."""
    return torch.accelerator.max_memory_reserved(_get_device_index(device, optional=True))


def reset_peak_memory_stats(device: Device = None) -> None:
    """Let the peaks start again from what is allocated now."""
    torch.accelerator.reset_peak_memory_stats(_get_device_index(device, optional=True))


def reset_accumulated_memory_stats(device: Device = None) -> None:
    """Let the totals of allocated and freed memory, and the count of failures, start from zero."""
    torch.accelerator.reset_accumulated_memory_stats(_get_device_index(device, optional=True))


def empty_cache() -> None:
    """Give unused memory back: a TPU has none; on a CPU plugin, what this process has kept."""
    torch.accelerator.empty_cache()


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """The free and the total bytes of a device."""
    return torch.accelerator.get_memory_info(_get_device_index(device, optional=True))


def get_memory_info(device: Device = None) -> tuple[int, int]:
    """The same as :func:`mem_get_info`, by the name ``torch.accelerator`` has for it."""
    return mem_get_info(device)


def set_per_process_memory_fraction(fraction: float, device: Device = None) -> None:
    """Limit this process to a part of the device's memory.

    Beyond it ``torch.OutOfMemoryError`` is raised. 1.0 takes the limit away, the one of
    ``TORCH_TPU_MEMORY_LIMIT`` too.
    """
    if not 0 < fraction <= 1:
        raise ValueError(
            f"set_per_process_memory_fraction: expected a fraction above 0 and up to 1, "
            f"got {fraction}"
        )
    index = _get_device_index(device, optional=True)
    _C.set_memory_limit(index, 0)
    if fraction < 1:
        _C.set_memory_limit(index, int(fraction * _C.total_memory(index)))
