"""The suite "gradients": backward, and backward of it, on both devices."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from torch_tpu.testing import databases, exceptions
from torch_tpu.testing.cases import DTYPES, Case, Options, Result
from torch_tpu.testing.operator_calls import Arguments, Checker
from torch_tpu.testing.placement import tensors_in

DTYPE_NAMES = ("float32", "complex64")
VARIANTS = ("backward", "inplace", "gradgrad")


def _applies(info: Any, variant: str) -> bool:
    if variant == "inplace":
        return info.supports_inplace_autograd and info.inplace_variant is not None
    return variant != "gradgrad" or bool(info.supports_gradgrad)


def cases() -> Iterator[Case]:
    """Every operator that has gradients, with the dtypes the CPU has them for."""
    for dtype in DTYPE_NAMES:
        for variant in VARIANTS:
            for name, info in databases.operators().items():
                dtypes = info.supported_backward_dtypes("cpu")
                if (
                    DTYPES[dtype] in dtypes
                    and info.supports_dtype(DTYPES[dtype], "cpu")
                    and _applies(info, variant)
                ):
                    yield Case("gradients", name, variant, dtype)


def cotangents(outputs: list[torch.Tensor], requires_grad: bool, seed: int) -> list[torch.Tensor]:
    """Random numbers like the outputs, the same on every device and in every dtype."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for output in outputs:
        shape = (*output.shape, 2) if output.is_complex() else output.shape
        # bfloat16 has no digit that another dtype lacks.
        numbers = torch.randn(shape, generator=generator).to(torch.bfloat16).to(torch.float32)
        number = torch.view_as_complex(numbers) if output.is_complex() else numbers
        made.append(number.to(output.dtype).to(output.device).requires_grad_(requires_grad))
    return made


def attention_for(op: str) -> contextlib.AbstractContextManager[None]:
    """Makes attention what can be differentiated twice, where it is part of the operator."""
    if op in exceptions.FUSED_ATTENTION:
        return sdpa_kernel(SDPBackend.MATH)
    return contextlib.nullcontext()


def differentiated(outputs: Any, leaves: list[torch.Tensor], twice: bool) -> Any:
    """Gradients of outputs, or the gradients of those."""
    targets = [t for t in tensors_in(outputs) if t.requires_grad]
    if not targets:
        raise RuntimeError("no output requires a gradient")
    seeds = cotangents(targets, twice, 1)
    first = torch.autograd.grad(targets, leaves, seeds, allow_unused=True, create_graph=twice)
    if not twice:
        return list(first)
    again = [g for g in first if g is not None and g.requires_grad]
    if not again:
        return []
    return list(
        torch.autograd.grad(
            again, [*leaves, *seeds], cotangents(again, False, 2), allow_unused=True
        )
    )


def run(case: Case, options: Options) -> Result:
    """Runs a case."""
    info = databases.operators()[case.op]
    checker = Checker(case, info, options)
    function: Callable[..., Any] = info.op
    if case.variant == "inplace":

        def function(value: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            return info.inplace_variant(value.clone(), *args, **kwargs)

    for sample in checker.samples(requires_grad=True):
        if case.variant == "inplace" and sample.broadcasts_input:
            continue

        def gradients(arguments: Arguments, process: Any = sample.output_process_fn_grad) -> Any:
            leaves = [
                t
                for t in tensors_in((arguments.input, arguments.args, arguments.kwargs))
                if t.requires_grad
            ]

            def call(*args: Any, **kwargs: Any) -> Any:
                return info.gradcheck_wrapper(function, *args, **kwargs)

            twice = case.variant == "gradgrad"
            with attention_for(case.op) if twice else contextlib.nullcontext():
                outputs = process(arguments.call(call))
                return differentiated(outputs, leaves, twice)

        checker.check(Arguments.of(sample), gradients, requires_grad=True)
    return checker.finish()
