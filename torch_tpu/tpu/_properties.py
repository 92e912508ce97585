"""What a device is called and how much memory it has."""

from __future__ import annotations

from dataclasses import dataclass

from torch_tpu import _C
from torch_tpu.tpu._utils import Device, _get_device_index

# Some plugins name a generation by its marketing predecessor; libraries look for these names.
_NAMES = {
    "TPU v5 lite": "TPU v5e",
    "TPU v5": "TPU v5p",
    "TPU v6 lite": "TPU v6e",
    "TPU7x": "TPU v7x",
}


@dataclass(frozen=True)
class DeviceProperties:
    """What is known of a device."""

    name: str
    """As :func:`get_device_name` gives it."""
    kind: str
    """The plugin's own name for it."""
    platform: str
    """The plugin's platform: "tpu", or "cpu" where the device is emulated."""
    index: int
    total_memory: int
    """In bytes: the device's, or the limit set for this process when that is lower."""
    multi_processor_count: int
    """Cores that run a program: a TPU core runs a whole one, so 1."""


def get_device_name(device: Device = None) -> str:
    """The device's name: "TPU v5e" and the like, or "TPU (emulated on cpu)"."""
    kind = _C.device_kind(_get_device_index(device, optional=True))
    if "TPU" not in kind.upper():
        return f"TPU (emulated on {kind.lower()})"
    return _NAMES.get(kind, kind)


def get_device_properties(device: Device = None) -> DeviceProperties:
    """Name, memory and platform of a device."""
    index = _get_device_index(device, optional=True)
    return DeviceProperties(
        name=get_device_name(index),
        kind=_C.device_kind(index),
        platform=_C.platform_name(),
        index=index,
        total_memory=_C.total_memory(index),
        multi_processor_count=1,
    )
