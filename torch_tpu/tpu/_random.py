"""Random numbers: one generator per device, named by a seed and an offset.

A generator's state is 16 bytes in a CPU tensor: seed and offset. Neither seeding nor reading it
starts the device.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import overload

import torch

from torch_tpu import _C
from torch_tpu.tpu._utils import Device, _get_device_index


class _DefaultGenerators(Sequence[torch.Generator]):
    """The default generator of each device, as many as there are devices when asked."""

    def __len__(self) -> int:
        return _C.device_count()

    @overload
    def __getitem__(self, index: int) -> torch.Generator: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[torch.Generator, ...]: ...
    def __getitem__(self, index: int | slice) -> torch.Generator | tuple[torch.Generator, ...]:
        places = range(len(self))[index]
        if isinstance(places, range):
            return tuple(_C.default_generator(i) for i in places)
        return _C.default_generator(places)


default_generators: Sequence[torch.Generator] = _DefaultGenerators()


def _generator(device: Device) -> torch.Generator:
    return _C.default_generator(_get_device_index(device, optional=True))


def get_rng_state(device: Device = "tpu") -> torch.Tensor:
    """The state of a device's generator, as a CPU ByteTensor."""
    return _generator(device).get_state()


def set_rng_state(new_state: torch.Tensor, device: Device = "tpu") -> None:
    """Restore what :func:`get_rng_state` gave."""
    _generator(device).set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    """The states of all devices' generators."""
    return [get_rng_state(i) for i in range(_C.device_count())]


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Restore what :func:`get_rng_state_all` gave."""
    for i, state in enumerate(new_states):
        set_rng_state(state, i)


def manual_seed(seed: int) -> None:
    """Seed the current device's generator."""
    _generator(None).manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seed the generators of all devices; ``torch.manual_seed`` does this too."""
    _C.seed_all(int(seed) & 0xFFFF_FFFF_FFFF_FFFF)


def seed() -> int:
    """Seed the current device's generator with a random number, and return that."""
    return _generator(None).seed()


def seed_all() -> int:
    """Seed the generators of all devices with one random number, and return that."""
    value = seed()
    manual_seed_all(value)
    return value


def initial_seed() -> int:
    """The seed of the current device's generator."""
    return _generator(None).initial_seed()
