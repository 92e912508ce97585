"""The module ``torch.backends.tpu``; libraries look for it to know the device is there."""

from __future__ import annotations

from torch_tpu import _C, __version__


def is_built() -> bool:
    """Whether PyTorch has the device: where this module is, it does."""
    return True


def is_available() -> bool:
    """Whether there is a device to use."""
    return _C.device_count() > 0


def version() -> str:
    """The version of torch_tpu."""
    return __version__


__all__ = ["is_available", "is_built", "version"]
