"""Device arguments: what the functions of ``torch.tpu`` accept, as an index."""

from __future__ import annotations

from typing import TypeAlias

import torch

from torch_tpu import _C

Device: TypeAlias = torch.device | str | int | None


def _get_device_index(device: Device, optional: bool = False, allow_cpu: bool = False) -> int:
    """The index a device argument stands for; PyTorch itself calls this when it loads files.

    Without an index ("tpu", or None) it is the current device's when ``optional``, else a
    ValueError. With ``allow_cpu`` a CPU device gives -1.
    """
    if isinstance(device, str):
        device = torch.device(device)
    if isinstance(device, torch.device):
        if allow_cpu and device.type == "cpu":
            return -1
        if device.type != "tpu":
            raise ValueError(f"expected a tpu device, got {device}")
        device = device.index
    if device is not None:
        return device
    if not optional:
        raise ValueError("expected a tpu device with an index (such as tpu:0)")
    return _C.current_device()
