"""What Dynamo asks of a device."""

from __future__ import annotations

from typing import Any

import torch

from torch_tpu import tpu

# Neither the device nor its compiler has them.
_ABSENT = (torch.complex32,)


def interface(base: type) -> type:
    """The device's interface, in place of ``base``, which is PyTorch's own for the name "tpu"."""

    class Worker(base.Worker):  # type: ignore[name-defined]
        """The same, for processes that compile."""

        @staticmethod
        def set_device(device: int) -> None:
            tpu.set_device(device)

        @staticmethod
        def current_device() -> int:
            return tpu.current_device()

        @staticmethod
        def get_device_properties(device: Any = None) -> Any:
            return tpu.get_device_properties(device)

    return type(
        "TpuInterface",
        (base,),
        {
            "__doc__": "Dynamo's view of torch.tpu.",
            "Worker": Worker,
            "device": tpu.device,
            "Event": tpu.Event,
            "Stream": tpu.Stream,
            "stream": staticmethod(tpu.stream),
            "current_stream": staticmethod(tpu.current_stream),
            "set_stream": staticmethod(tpu.set_stream),
            "_set_stream_by_id": staticmethod(_set_stream_by_id),
            "current_device": staticmethod(tpu.current_device),
            "set_device": staticmethod(tpu.set_device),
            "exchange_device": staticmethod(_exchange_device),
            "maybe_exchange_device": staticmethod(_exchange_device),
            "device_count": staticmethod(tpu.device_count),
            "is_available": staticmethod(tpu.is_available),
            "synchronize": staticmethod(tpu.synchronize),
            "memory_allocated": staticmethod(tpu.memory_allocated),
            "is_bf16_supported": staticmethod(_is_bf16_supported),
            "is_dtype_supported": staticmethod(_is_dtype_supported),
            "is_triton_capable": staticmethod(_is_triton_capable),
        },
    )


def _exchange_device(device: int) -> int:
    """Makes a device the current one, unless the index is negative; returns the one before."""
    before = tpu.current_device()
    tpu.set_device(device)
    return before


def _set_stream_by_id(stream_id: int, device_index: int, device_type: int) -> None:
    tpu.set_stream(
        torch.Stream(stream_id=stream_id, device_index=device_index, device_type=device_type)
    )


def _is_bf16_supported(including_emulation: bool = False) -> bool:
    return True


def _is_dtype_supported(dtype: torch.dtype, including_emulation: bool = False) -> bool:
    return dtype not in _ABSENT


def _is_triton_capable(device: Any = None) -> bool:
    return False
