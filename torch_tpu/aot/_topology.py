"""The names of topologies, and what the compiler knows about each."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

import torch  # noqa: F401 - the extension needs its libraries

from torch_tpu import _C, plugins

_PLANE = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_CUBE = ("1x1x1", "2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8")
# Chips are arranged in a plane or a cube; any size that whole machines add up to is accepted.
_SIZES = {
    "v2": ("2x2", "4x4", "8x8", "16x16"),
    "v3": ("2x2", "4x4", "8x8", "16x16"),
    "v4": _CUBE,
    "v5e": _PLANE,
    "v5p": _CUBE,
    "v6e": _PLANE,
    "tpu7x": _CUBE,
}
_NAME = re.compile(r"(?P<kind>[a-z0-9]+):(?P<size>[1-9][0-9]*(x[1-9][0-9]*){1,2})(_(un)?twisted)?")


#: What stands for this process's own device instead of a topology.
DEVICE_NAMES = ("device", "cpu")


@dataclass(frozen=True)
class Topology:
    """A kind and number of TPUs."""

    #: As given, e.g. "v5e:2x2".
    name: str
    #: The device's own name, e.g. "TPU v5 lite".
    device_kind: str
    #: Devices as programs see them; a chip of v2, v3, v4 and tpu7x has two.
    num_devices: int
    #: Bytes that one device has for programs and their data; None where the compiler does not say.
    device_memory: int | None


def topologies() -> tuple[str, ...]:
    """The usual names of topologies, smallest first for each kind of TPU.

    Other sizes of the same kinds are accepted too, e.g. "v5p:4x4x12".
    """
    return tuple(f"{kind}:{size}" for kind, sizes in _SIZES.items() for size in sizes)


def topology(name: str) -> Topology:
    """What the compiler knows about a topology such as "v5e:2x2", or "device"."""
    if name in DEVICE_NAMES:
        return device_topology(name)
    handle = open_topology(name)
    return Topology(name, handle.device_kind, handle.num_devices, handle.device_memory)


def device_topology(name: str) -> Topology:
    """This process's own device, which is started."""
    platform = _C.platform_name()
    if name == "cpu" and platform != "cpu":
        raise ValueError(
            f"[aot] the topology 'cpu' is this process's own device where that is a CPU's, but "
            f"here it is {_C.device_kind(0)} ({platform}); use 'device'"
        )
    return Topology(name, _C.device_kind(0), _C.device_count(), _C.total_memory(0))


@functools.lru_cache(maxsize=64)
def open_topology(name: str) -> _C.AotTopology:
    """The compiler for a topology. Raises ValueError for a name it does not know."""
    if not isinstance(name, str):
        raise TypeError(
            f"[aot] expected the topology's name, such as 'v5e:2x2', got {type(name).__name__}"
        )
    match = _NAME.fullmatch(name)
    if match is None or match["kind"] not in _SIZES:
        raise ValueError(_expected(name))
    try:
        return _C.AotTopology(libtpu(), name)
    except _C.AotError as error:
        if error.code != "INVALID_ARGUMENT":
            raise
        raise ValueError(f"{_expected(name)}\nThe compiler says: {error}") from None


def _expected(name: str) -> str:
    examples = "; ".join(f"{kind}:{', '.join(sizes)}" for kind, sizes in _SIZES.items())
    return (
        f"[aot] expected a topology KIND:SIZE such as 'v5e:2x2' or 'tpu7x:2x2x1', or 'device' for "
        f"this process's own, got {name!r}. "
        f"Kinds and their usual sizes: {examples}"
    )


def libtpu() -> str:
    """The compiler for TPUs. Raises ImportError where it is not installed."""
    candidates, _ = plugins.find_plugins()
    if not candidates:
        raise ImportError(
            "[aot] compiling for TPUs needs the package libtpu, which is not installed: "
            "pip install 'torch_tpu[libtpu]'",
            name="libtpu",
        )
    return candidates[0]
