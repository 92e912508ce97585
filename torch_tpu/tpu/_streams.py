"""Streams and events.

PJRT orders programs by the data they use, so any program may use any result, whichever stream it
was computed on. A stream says what to wait for: ``synchronize`` and ``query`` look at the work
that was dispatched while it was current.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch

from torch_tpu import _C
from torch_tpu.tpu._utils import Device, _get_device_index

# What the two classes make are PyTorch's own objects, since some of its functions accept no
# subclasses; isinstance() tells those of this device.


class _StreamType(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Stream) and instance.device.type == "tpu"


class _EventType(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Event) and instance.device.type == "tpu"


class Stream(torch.Stream, metaclass=_StreamType):
    """A sequence of work on one device: a ``torch.Stream``, by the arguments of torch.cuda's.

    ``priority`` is accepted and has no effect.
    """

    def __new__(  # type: ignore[misc]
        cls, device: Device = None, priority: int = 0, **kwargs: Any
    ) -> torch.Stream:
        """Make a stream, or with ``stream_id=...`` and so on name one that exists."""
        if kwargs:
            return torch.Stream(priority=priority, **kwargs)
        where = torch.device("tpu", _get_device_index(device, optional=True))
        return torch.Stream(where, priority=priority)


class Event(torch.Event, metaclass=_EventType):
    """A point in a stream's work that can be waited for: a ``torch.Event`` of this device."""

    def __new__(  # type: ignore[misc]
        cls,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
    ) -> torch.Event:
        """Make an event; it waits for nothing until it is recorded."""
        return torch.Event(
            torch.device("tpu", _C.current_device()),
            enable_timing=enable_timing,
            blocking=blocking,
            interprocess=interprocess,
        )


class StreamContext:
    """Context manager: work dispatched inside belongs to the stream. None changes nothing."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream
        self._previous: list[tuple[int, torch.Stream]] = []

    def __enter__(self) -> torch.Stream | None:
        if self.stream is not None:
            device = _C.current_device()
            self._previous.append((device, current_stream(self.stream.device)))
            set_stream(self.stream)
        return self.stream

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.stream is not None:
            device, previous = self._previous.pop()
            set_stream(previous)
            _C.set_device(device)


def stream(stream: torch.Stream | None) -> StreamContext:
    """Make a stream, and its device, the current one inside a ``with`` block."""
    return StreamContext(stream)


def set_stream(stream: torch.Stream | None) -> None:
    """Make a stream, and its device, the calling thread's current one."""
    if stream is not None:
        torch.accelerator.set_stream(stream)


def _existing(device: int, stream_id: int) -> torch.Stream:
    return torch.Stream(stream_id=stream_id, device_index=device, device_type=_C.DEVICE_TYPE)


def current_stream(device: Device = None) -> torch.Stream:
    """The calling thread's current stream of a device."""
    index = _get_device_index(device, optional=True)
    return _existing(index, _C.current_stream(index))


def default_stream(device: Device = None) -> torch.Stream:
    """The stream that is current unless another one is set."""
    return _existing(_get_device_index(device, optional=True), 0)
