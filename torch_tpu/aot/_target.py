"""Steps written for a TPU in a process that has none."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch_tpu import _C


@contextlib.contextmanager
def written_for_tpu() -> Iterator[None]:
    """Steps of `torch.tpu.compile_step` that are traced in this block are written for a TPU.

    Their programs run here too, but a CPU's compiler then computes products of float32 in
    float32, whatever the precision says, and some operators slower. For programs that are to be
    compiled ahead of time with `compile`. Other threads should not compute meanwhile.
    """
    before = _C.exchange_lowering_target(True)
    _C.set_precision_emulated(False)
    try:
        yield
    finally:
        _C.set_precision_emulated(None)
        _C.exchange_lowering_target(before)
