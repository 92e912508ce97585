"""The suite "modules": every module of torch.nn, moved to the device and trained a step."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch.testing._internal.common_utils import noncontiguous_like

from torch_tpu.testing import databases, exceptions
from torch_tpu.testing.cases import DTYPES, Case, Options, Result
from torch_tpu.testing.gradients import differentiated
from torch_tpu.testing.operator_calls import Arguments, Checker
from torch_tpu.testing.placement import over_tensors, tensors_in

DTYPE_NAMES = ("float32",)
VARIANTS = ("train", "eval", "noncontiguous", "state_dict")


def cases() -> Iterator[Case]:
    """Every module, trained and evaluated, with other layouts, and saved and loaded."""
    for dtype in DTYPE_NAMES:
        for variant in VARIANTS:
            for name, info in databases.modules().items():
                if DTYPES[dtype] in info.supported_dtypes("cpu"):
                    yield Case("modules", name, variant, dtype)


def step(arguments: Arguments) -> dict[str, Any]:
    """Outputs, gradients and the state after a forward and a backward pass."""
    module = arguments.input
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outputs = module(*arguments.args, **arguments.kwargs)
    found: dict[str, Any] = {"outputs": outputs, "state": dict(module.state_dict())}
    leaves = [
        t
        for t in [*tensors_in((arguments.args, arguments.kwargs)), *module.parameters()]
        if t.requires_grad
    ]
    if leaves and any(t.requires_grad for t in tensors_in(outputs)):
        found["gradients"] = differentiated(outputs, leaves, twice=False)
    return found


def round_trip(arguments: Arguments) -> dict[str, Any]:
    """The state after saving it and loading it into another instance, and what that computes."""
    module = arguments.input
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    twin = copy.deepcopy(module)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    twin.load_state_dict(torch.load(file))
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        outputs = twin(*arguments.args, **arguments.kwargs)
    return {"outputs": outputs, "state": dict(twin.state_dict())}


def run(case: Case, options: Options) -> Result:
    """Runs a case."""
    info = databases.modules()[case.op]
    checker = Checker(case, info, options)

    def strided(tensor: torch.Tensor) -> torch.Tensor:
        if case.op in exceptions.CONTIGUOUS_INTEGERS and not tensor.is_floating_point():
            return tensor
        return noncontiguous_like(tensor).detach().requires_grad_(tensor.requires_grad)

    dtype, training = DTYPES[case.dtype], case.variant != "eval"
    torch.manual_seed(0)
    inputs = list(
        info.module_inputs_func(
            info, device="cpu", dtype=dtype, requires_grad=True, training=training
        )
    )
    for item in checker.some_of(inputs):
        if item.forward_input is None:
            continue
        torch.manual_seed(0)
        built = item.constructor_input
        module = info.module_cls(*built.args, **built.kwargs).to(dtype).train(training)
        args, kwargs = tuple(item.forward_input.args), dict(item.forward_input.kwargs)
        if info.is_lazy:
            with torch.no_grad():
                module(*args, **kwargs)
        if case.variant == "noncontiguous":
            args, kwargs = over_tensors((args, kwargs), strided)
        checker.check(
            Arguments(module, args, kwargs),
            round_trip if case.variant == "state_dict" else step,
            requires_grad=True,
        )
    return checker.finish()
