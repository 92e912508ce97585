"""Where the time before a compiled function runs has gone."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from torch_tpu import _C


@dataclass(frozen=True)
class CompileTimes:
    """Seconds that the stages of compiling have taken in this process, all threads together."""

    dynamo: float
    """From Python functions to graphs, and the guards: ``torch.compile`` without its backend."""
    aot: float
    """From those to the graphs of forward and backward: AOTAutograd."""
    lowering: float
    """From graphs of operators to the texts of programs."""
    compiling: float
    """XLA, for compiled graphs and for operators that run by themselves."""
    loading: float
    """Programs that came from the compilation cache instead."""

    def __str__(self) -> str:
        stages = ("dynamo", "aot", "lowering", "compiling", "loading")
        return ", ".join(f"{stage} {getattr(self, stage):.2f} s" for stage in stages)


def compile_times() -> CompileTimes:
    """How long tracing has taken, apart from what XLA has taken.

    ``torch.compiler.reset`` lets Dynamo's part start from zero, and
    :func:`reset_dispatch_stats` XLA's.
    """
    times = sys.modules.get("torch_tpu.compiler.times")
    utils = sys.modules.get("torch._dynamo.utils")
    dynamo = 0.0
    if utils is not None:
        spent = utils.cumulative_time_spent_ns
        frames = spent.get("entire_frame_compile", 0) - spent.get("backend_compile", 0)
        dynamo = max(frames, 0) / 1e9
    statistics = _C.statistics()
    return CompileTimes(
        dynamo=dynamo,
        aot=times.AOT.seconds if times is not None else 0.0,
        lowering=times.LOWERING.seconds if times is not None else 0.0,
        compiling=statistics["compile_seconds"],
        loading=statistics["load_seconds"],
    )
