"""The host's random numbers while a training step is traced."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch

from torch_tpu.tpu._step_errors import NotCapturableError


class Randomness:
    """The random state of the host, for an attempt that fails."""

    def __init__(self) -> None:
        self._python = random.getstate()
        self._numpy = sys.modules.get("numpy")
        self._numpy_state: Any = self._numpy.random.get_state() if self._numpy else None
        self._torch = torch.get_rng_state()

    def check(self) -> None:
        """Numbers of these generators would be the same at every call."""
        if random.getstate() != self._python:
            raise NotCapturableError("it draws random numbers from Python's module random")
        if self._numpy is not None:
            kind, words, *rest = self._numpy.random.get_state()
            old_kind, old_words, *old_rest = self._numpy_state
            if (kind, rest) != (old_kind, old_rest) or (words != old_words).any():
                raise NotCapturableError("it draws random numbers from NumPy")

    def put_back(self) -> None:
        random.setstate(self._python)
        if self._numpy is not None:
            self._numpy.random.set_state(self._numpy_state)
        torch.set_rng_state(self._torch)
