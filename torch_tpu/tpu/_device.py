"""Which devices there are, and the current one."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch

from torch_tpu import _C
from torch_tpu.tpu._utils import Device, _get_device_index


def is_available() -> bool:
    """Whether there is a device to use. Never raises."""
    return _C.device_count() > 0


def device_count() -> int:
    """The number of devices of this process; 0 when no plugin can be used."""
    return _C.device_count()


def is_initialized() -> bool:
    """Whether the plugin has been loaded and its client made."""
    return _C.is_initialized() and not _C.is_in_bad_fork()


def init() -> None:
    """Load the plugin and make its client, which otherwise happens on first use.

    Raises RuntimeError, naming what was tried, when that is not possible.
    """
    _C.initialize()


def is_in_bad_fork() -> bool:
    """Whether this process was forked from one that was using the device, and cannot use it."""
    return _C.is_in_bad_fork()


def current_device() -> int:
    """The index of the calling thread's current device."""
    return _C.current_device()


def set_device(device: Device) -> None:
    """Make ``device`` the calling thread's current one; a negative index changes nothing."""
    index = _get_device_index(device, optional=True)
    if index >= 0:
        _C.set_device(index)


def synchronize(device: Device = None) -> None:
    """Wait until all work on the device (by default the current one) is done."""
    _C.synchronize(_get_device_index(device, optional=True))


def get_device_capability(device: Device = None) -> dict[str, Any]:
    """What the device supports: ``{"supported_dtypes": {...}}``, as ``torch.accelerator`` says."""
    index = _get_device_index(device, optional=True)
    return torch.accelerator.get_device_capability(index)


class device:  # noqa: N801 - the name in torch.cuda
    """Context manager: the current device is another one inside. None or -1 changes nothing."""

    def __init__(self, device: Device) -> None:
        self.idx = _get_device_index(device, optional=True)
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = _C.exchange_device(self.idx)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _C.exchange_device(self.prev_idx)


class device_of(device):  # noqa: N801 - the name in torch.cuda
    """Context manager: the current device is a tensor's inside, if it is on one."""

    def __init__(self, obj: Any) -> None:
        on_tpu = getattr(getattr(obj, "device", None), "type", None) == "tpu"
        super().__init__(obj.device if on_tpu else -1)
