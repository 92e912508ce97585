"""Why an attempt to trace a training step ends."""

from __future__ import annotations

from torch.optim import Optimizer

from torch_tpu.tpu._step_reach import Held


class NotCapturableError(Exception):
    """The step does what a program cannot do."""


class NotYetError(Exception):
    """The step did what only the first ones do: it has to run eagerly once more."""


class OtherOptimizersError(NotYetError):
    """The optimizers that step are others than was thought."""

    def __init__(self, optimizers: list[Optimizer]) -> None:
        super().__init__("optimizers step that did not before")
        self.optimizers = optimizers


class DisturbedError(NotCapturableError):
    """It may be that another thread was in the way, and will not be at the next call."""


class CountsError(NotYetError):
    """The step changes numbers on the host that it was not known to change."""

    def __init__(self, counts: list[Held]) -> None:
        super().__init__(", ".join(held.what for held in counts) + " changes in the step")
        self.counts = counts
