"""Models as StableHLO text (``torch.tpu.export``).

Neither a TPU nor a started device is needed: a graph of ``torch.export`` is lowered from the types
of its inputs alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch

from torch_tpu.export._interface import Interface, Leaf, Value

if TYPE_CHECKING:
    from torch.export import ExportedProgram

Platform = Literal["tpu", "cpu"]


@dataclass(frozen=True, repr=False)
class StableHLOProgram:
    """A model as one StableHLO program."""

    #: The module, whose function ``main`` has the inputs and outputs below.
    text: str
    #: The inputs and outputs, and how a call's arguments and results map to them.
    interface: Interface
    #: The compiler that it is written for, "tpu" or "cpu".
    platform: str
    #: Inputs that are in no state dict, by their targets.
    constants: Mapping[str, torch.Tensor] = field(compare=False)
    #: Of the model or function.
    name: str = "program"

    @property
    def inputs(self) -> tuple[Value, ...]:
        """Parameters, buffers, constants and the user's inputs, in the signature's order."""
        return self.interface.inputs

    @property
    def outputs(self) -> tuple[Value, ...]:
        """New values of buffers and inputs that are written, and the results, in that order."""
        return self.interface.outputs

    def portable_artifact(self) -> bytes:
        """The program in StableHLO's versioned bytecode; not available, see the error."""
        raise NotImplementedError(
            "[export] no portable artifact: the C API of PJRT plugins reads StableHLO's versioned "
            "bytecode but has no function that writes it. The text is complete; StableHLO's own "
            "tool makes the artifact of it: stablehlo-translate --serialize --target=VERSION "
            "FILE.mlir"
        )

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.name!r} for {self.platform}: "
            f"{len(self.inputs)} inputs, {len(self.outputs)} outputs, "
            f"{len(self.text):,} characters>"
        )


def to_stablehlo(
    program: ExportedProgram | torch.nn.Module | Callable[..., Any],
    args: Sequence[Any] | torch.Tensor | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    platform: Platform = "tpu",
) -> StableHLOProgram:
    """A model as one StableHLO program.

    Args:
        program: What `torch.export.export` gave, of tensors on any device; or a model or function,
            which is exported with the arguments.
        args: Example arguments, or a tensor if that is all. With an exported program they are
            needed only if it has dynamic sizes: the program is for the sizes that they have.
        kwargs: Example arguments by name.
        platform: The compiler that the program is for. Products of float32 have the current
            precision (`torch.set_float32_matmul_precision`, `torch.tpu.precision`), for "tpu" as an
            attribute, for "cpu" imitated in the program, since a CPU's compiler ignores it.

    Buffers and inputs that the model writes are inputs whose new values are outputs, marked to be
    in the same memory. A model that draws random numbers has one more input, ``rng_state``.
    """
    from torch_tpu.export import _lower

    if platform not in ("tpu", "cpu"):
        raise ValueError(f"[export] expected the platform 'tpu' or 'cpu', got {platform!r}")
    exported, args, kwargs = as_exported(program, args, kwargs)
    lowered = _lower.lower(exported, args, kwargs, for_tpu=platform == "tpu")
    return StableHLOProgram(
        lowered.text, lowered.interface, platform, lowered.constants, name_of(program)
    )


def name_of(program: object) -> str:
    """What a model or function is called: its own name, or its class's."""
    from torch.export import ExportedProgram

    if isinstance(program, ExportedProgram):
        return "program"  # it does not know
    name = getattr(program, "__name__", None)
    return name if isinstance(name, str) else type(program).__name__


def as_exported(
    program: ExportedProgram | torch.nn.Module | Callable[..., Any],
    args: Sequence[Any] | torch.Tensor | None,
    kwargs: Mapping[str, Any] | None,
) -> tuple[ExportedProgram, Sequence[Any] | None, Mapping[str, Any] | None]:
    """The program itself; of a model or function, what `torch.export.export` makes of it.

    The arguments come back where they still say something: an exported program's sizes.
    """
    from torch.export import ExportedProgram, export

    from torch_tpu.compiler.interpolation import whole_on_cpu

    args = _as_arguments(args)
    if isinstance(program, ExportedProgram):
        return program, args, kwargs
    if args is None and kwargs is None:
        raise TypeError(
            f"[export] expected example arguments (args, kwargs) with a {type(program).__name__}: "
            "only an ExportedProgram has its own"
        )
    model = program if isinstance(program, torch.nn.Module) else _FunctionModule(program)
    with whole_on_cpu():
        exported = export(model, tuple(args or ()), dict(kwargs or {}), strict=False)
    return exported, None, None


def _as_arguments(args: Any) -> Sequence[Any] | None:
    """Example arguments; a tensor alone is the only one."""
    if args is None or isinstance(args, tuple | list):
        return args
    if isinstance(args, torch.Tensor):
        return (args,)
    hint = "; arguments by name go into kwargs" if isinstance(args, Mapping) else ""
    raise TypeError(
        f"[export] expected a tuple of example arguments, got a {type(args).__name__}{hint}"
    )


class _FunctionModule(torch.nn.Module):
    """A function as the module that torch.export wants."""

    def __init__(self, function: Callable[..., Any]) -> None:
        if not callable(function):
            raise TypeError(
                "[export] expected an ExportedProgram, a module or a function, got a "
                f"{type(function).__name__}"
            )
        super().__init__()
        self._function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function."""
        return self._function(*args, **kwargs)


__all__ = ["Interface", "Leaf", "StableHLOProgram", "Value", "to_stablehlo"]
