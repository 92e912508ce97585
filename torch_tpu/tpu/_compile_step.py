"""A training step as one program."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from torch.optim.lr_scheduler import LRScheduler

from torch_tpu.tpu._compiler_options import flags_only
from torch_tpu.tpu.compiler import Options


def compile_step(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    accumulate: int = 1,
    keep_gradients: bool = False,
    schedulers: Sequence[LRScheduler] | LRScheduler = (),
    max_programs: int = 8,
    options: Options | None = None,
) -> Any:
    """Make a training step one program, in which parameters and optimizer state are donated.

    ``fn`` is plain PyTorch: it clears gradients, runs the model, calls ``backward()``, clips, calls
    ``step()`` of optimizers. Its first call is traced: operators are lowered instead of being
    executed, autograd and the optimizers do what they always do. From then on a call runs the
    program, and none of the Python code. Where the first call does what only first calls do it runs
    eagerly, and the second one is traced.

    Batches are arguments: one that the step itself takes from an iterator would be the same at
    every call, so such a step runs eagerly. Numbers that it counts on the host go on counting.

    Can be used as a decorator, with or without arguments.

    Args:
        fn: The step. Tensors among its arguments may hold other values at every call; everything
            else is part of what a program is made for.
        accumulate: Split the batch (the tensors' first dimension) into so many parts; their
            gradients are averaged before the optimizer steps.
        keep_gradients: Leave gradients in ``p.grad``. Without, gradients that were made in the step
            for an optimizer that steps in it exist only in the program, and ``p.grad`` is None
            afterwards.
        schedulers: Learning rate schedulers to be stepped after every call. The step may do so
            itself instead.
        max_programs: How many programs are kept, for different shapes or settings, at least one.
        options: XLA's flags for the programs, beside those of the
            `torch.tpu.compiler.custom_compiler_options` around a call that is traced.

    Returns:
        A callable like ``fn``. The tensors it returns have no graph.
    """
    if fn is None:
        return functools.partial(
            compile_step,
            accumulate=accumulate,
            keep_gradients=keep_gradients,
            schedulers=schedulers,
            max_programs=max_programs,
            options=options,
        )
    if not callable(fn):
        raise TypeError(
            f"torch.tpu.compile_step: expected a callable, got {type(fn).__name__}; pass the "
            "function that makes one training step, not what a call of it gives"
        )
    for name, number in (("accumulate", accumulate), ("max_programs", max_programs)):
        if not isinstance(number, int):
            raise TypeError(f"torch.tpu.compile_step: expected {name} to be an int, got {number!r}")
        if number < 1:
            raise ValueError(f"torch.tpu.compile_step: expected {name} >= 1, got {number}")
    if not isinstance(schedulers, Sequence):
        schedulers = [schedulers]
    for scheduler in schedulers:
        if not hasattr(scheduler, "step"):
            raise TypeError(
                "torch.tpu.compile_step: expected schedulers to be those of "
                f"torch.optim.lr_scheduler, got {scheduler!r}"
            )
    flags = flags_only(options or {}, "torch.tpu.compile_step")
    # Whoever does not compile a step need not import what does.
    from torch_tpu.tpu._compiled_step import CompiledStep

    return CompiledStep(fn, accumulate, keep_gradients, schedulers, max_programs, flags)
