"""The module ``torch.tpu``."""

from __future__ import annotations

from typing import Any

from torch_tpu import _C


def is_available() -> bool:
    return _C.device_count() > 0


def device_count() -> int:
    return _C.device_count()


def current_device() -> int:
    return _C.current_device()


def _is_in_bad_fork() -> bool:
    return _C.is_in_bad_fork()


def manual_seed_all(seed: int) -> None:
    for i in range(device_count()):
        _C.default_generator(i).manual_seed(seed)


def synchronize(device: int | None = None) -> None:
    _C.synchronize(_C.current_device())


def dispatch_stats() -> dict[str, Any]:
    return _C.statistics()
