"""What becomes of the numbers on the host that a training step changes."""

from __future__ import annotations

from typing import Any

import torch

from torch_tpu.tpu._step_entry import PLAIN, Update
from torch_tpu.tpu._step_errors import CountsError, NotCapturableError, NotYetError
from torch_tpu.tpu._step_numbers import Numbers
from torch_tpu.tpu._step_reach import Held
from torch_tpu.tpu._step_surroundings import Change, differ
from torch_tpu.tpu._warmup import _HostState


def updates_of(counted: list[tuple[Held, Any]], numbers: Numbers, first: bool) -> list[Update]:
    """Of the numbers that are known to change, with what stands for them: what gives the new ones.

    The old ones are in their places again.
    """
    updates: list[Update] = []
    for held, value in counted:
        read = numbers.read_of(value)
        if read is not None:
            updates.append((held, read))
        elif differ(held.now(), value):
            if first:
                raise NotYetError(f"{held.what} becomes something else")
            _refuse(held, held.now(), value)
    return updates


def others_than_counts(changes: list[Change], first: bool) -> bool:
    """Whether there are any, which is refused where the step is not traced for the first time.

    Counts are told to the caller, which traces the step again.
    """
    counts: list[Held] = []
    others = False
    for held, value in changes:
        if type(held.value) in (int, float) and not isinstance(value, str):
            counts.append(held)
        elif first:
            others = True
        else:
            _refuse(held, held.value, value)
    if counts:
        raise CountsError(counts)
    return others


def changes_of_modules(modules: list[torch.nn.Module], before: _HostState) -> list[Change]:
    """Numbers among their attributes."""
    return [
        Change(Held(vars(m), key, old, f"{key!r} of {type(m).__name__}"), vars(m)[key])
        for m in modules
        for key, old in before.before(vars(m)).items()
        if type(old) in (int, float) and key in vars(m) and differ(old, vars(m)[key])
    ]


def _refuse(held: Held, old: Any, new: Any) -> None:
    words = repr(new) if isinstance(new, PLAIN) else f"a {type(new).__name__}"
    raise NotCapturableError(f"{held.what} changes in the step, from {old!r} to {words}")
