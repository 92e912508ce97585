"""From an exported graph to StableHLO text."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from torch_tpu import _C
from torch_tpu.export._interface import (
    Interface,
    Leaf,
    Value,
    argument_names,
    dtype_name,
    dump_spec,
    in_words,
    is_same,
    structure_error,
)

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

_WRITES = frozenset({"buffer_mutation", "parameter_mutation", "user_input_mutation"})
_RESULTS = frozenset({"user_output", "loss_output"})


@dataclass(frozen=True)
class Lowered:
    """A graph as text."""

    text: str
    interface: Interface
    #: Inputs that are in no state dict, by their targets: lifted constants and buffers that are not
    #: persistent.
    constants: Mapping[str, torch.Tensor]


class _Inputs:
    """The graph's placeholders: tensors are inputs of the program, other values are fixed."""

    def __init__(self) -> None:
        self.values: list[Value] = []
        self.types: list[tuple[torch.dtype, list[int], list[int]]] = []
        self.leaves: list[Leaf] = []  # for each placeholder
        self.arguments: list[Leaf] = []  # for each of a call

    def add(self, node: Node, kind: str, target: str | None, value: object) -> None:
        if isinstance(value, torch.Tensor):
            leaf = Leaf(len(self.values))
            sizes = [_known(node, size) for size in value.shape]
            self.values.append(Value(node.name, kind, target, tuple(sizes), value.dtype))
            self.types.append((value.dtype, sizes, _dense_strides(value, sizes)))
        else:
            leaf = Leaf(None, _known(node, value))
        self.leaves.append(leaf)
        if kind == "user_input":
            self.arguments.append(leaf)

    def find(self, kinds: tuple[str, ...], name: str) -> int:
        """The input that is the parameter or buffer of this name, or the user's input."""
        for place, value in enumerate(self.values):
            if value.kind in kinds and name in (value.target, value.name):
                return place
        raise AssertionError(f"{name} is none of the graph's inputs")


class _Body:
    """Runs the graph on the trace's tensors, and notes what comes out."""

    def __init__(self, program: ExportedProgram, inputs: _Inputs) -> None:
        self._program = program
        self._inputs = inputs
        self.outputs: list[Value] = []
        self.writes: list[tuple[int, int]] = []
        self.results: list[Leaf] = []

    def __call__(
        self, tensors: list[torch.Tensor]
    ) -> tuple[list[torch.Tensor], list[tuple[int, int]]]:
        import torch_tpu.compiler.control_flow  # noqa: F401 - registers how its nodes are lowered
        from torch_tpu.compiler.replay import OwnTensors, Replay, plain_dispatch

        given = [
            leaf.value if leaf.place is None else tensors[leaf.place]
            for leaf in self._inputs.leaves
        ]
        graph = self._program.graph_module
        replay = Replay(graph, OwnTensors(graph), [], torch.device("tpu", 0))
        with plain_dispatch():
            flat = replay(*given)
        out: list[torch.Tensor] = []
        for value, spec in zip(flat, self._program.graph_signature.output_specs, strict=True):
            kind = spec.kind.name.lower()
            leaf = Leaf(None, value)
            if isinstance(value, torch.Tensor):
                leaf = Leaf(len(out))
                name = getattr(spec.arg, "name", "") or f"output_{len(out)}"
                shape = tuple(value.shape)
                self.outputs.append(Value(name, kind, spec.target, shape, value.dtype))
                if kind in _WRITES:
                    assert spec.target is not None
                    self.writes.append((len(out), self._written(kind, spec.target)))
                out.append(value)
            if kind in _RESULTS:
                self.results.append(leaf)
        return out, self.writes

    def _written(self, kind: str, target: str) -> int:
        what = kind.removesuffix("_mutation")
        return self._inputs.find((what, "constant") if what == "buffer" else (what,), target)


def lower(
    program: ExportedProgram,
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
    *,
    for_tpu: bool,
) -> Lowered:
    """Writes the program of an exported graph.

    Args:
        program: The graph with its signature.
        args: Arguments whose sizes the program is for; None: those it was exported with.
        kwargs: The same, by name.
        for_tpu: The compiler that the program is written for: a TPU's, else a CPU's.
    """
    from torch_tpu.compiler.interpolation import whole_on_cpu

    # Functional, and no operator taken apart: the rules know more of them than the core set has.
    with warnings.catch_warnings(), whole_on_cpu():
        warnings.simplefilter("ignore", FutureWarning)  # PyTorch's, of its own pytree code
        functional = program.run_decompositions({})
    inputs = _inputs_of(functional, args, kwargs)
    body = _Body(functional, inputs)
    text, random_count = _C.export_graph(inputs.types, body, for_tpu)
    values = list(inputs.values)
    if random_count:
        values.append(Value("rng_state", "rng_state", None, (2,), torch.uint64))
    interface = Interface(
        inputs=tuple(values),
        outputs=tuple(body.outputs),
        writes=tuple(body.writes),
        random_count=random_count,
        arguments=tuple(inputs.arguments),
        results=tuple(body.results),
        in_spec=dump_spec(functional.call_spec.in_spec),
        out_spec=dump_spec(functional.call_spec.out_spec),
    )
    return Lowered(text, interface, _constants(functional, values))


def _inputs_of(
    program: ExportedProgram, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None
) -> _Inputs:
    placeholders = program.graph_module.graph.find_nodes(op="placeholder")
    given: Iterator[tuple[str, Any]] | None = None
    if args is not None or kwargs is not None:
        given = iter(_flat_arguments(program, args or (), kwargs or {}))
    inputs = _Inputs()
    for node, spec in zip(placeholders, program.graph_signature.input_specs, strict=True):
        kind = spec.kind.name.lower()
        if kind in ("custom_obj", "token"):
            raise NotImplementedError(
                f"[export] expected tensors and numbers among the graph's inputs, but {node.name} "
                f"is a {'script object' if kind == 'custom_obj' else 'token of an effect'}"
            )
        # A tensor has an example; of other values the signature has the value itself.
        value = node.meta.get("val", getattr(spec.arg, "value", None))
        if kind == "user_input" and given is not None:
            value = _argument(value, *next(given))
        inputs.add(node, "constant" if kind == "constant_tensor" else kind, spec.target, value)
    return inputs


def _flat_arguments(
    program: ExportedProgram, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[tuple[str, Any]]:
    """With their names."""
    flat, spec = pytree.tree_flatten((tuple(args), dict(kwargs)))
    expected = program.call_spec.in_spec
    if spec != expected:
        raise structure_error("[export]", expected, spec)
    return list(zip(argument_names(expected), flat, strict=True))


def _argument(example: object, name: str, given: object) -> object:
    """The argument that takes the example's place. What is fixed in the graph must agree."""
    if not isinstance(example, torch.Tensor):
        if not isinstance(example, torch.SymInt) and not is_same(example, given):
            raise ValueError(
                f"[export] the graph was exported with {example!r} for {name}, got "
                f"{in_words(given)}"
            )
        return given
    if (
        not isinstance(given, torch.Tensor)
        or given.dtype != example.dtype
        or given.dim() != example.dim()
        or any(
            isinstance(size, int) and size != wanted
            for size, wanted in zip(example.shape, given.shape, strict=True)
        )
    ):
        sizes = ", ".join(map(str, example.shape))
        raise ValueError(
            f"[export] expected a tensor {dtype_name(example.dtype)}[{sizes}] for {name}, got "
            f"{in_words(given)}"
        )
    return given


def _known(node: Node, value: Any) -> Any:
    """The value, which a symbol of a dynamic shape is not."""
    if not isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return value
    number = value.node.maybe_as_int() if isinstance(value, torch.SymInt) else None
    if number is None:
        raise ValueError(
            f"[export] {node.name} has a dynamic size ({value}), and a program is for fixed ones: "
            "pass the arguments (args, kwargs) whose sizes it is for, or export the model without "
            "dynamic_shapes"
        )
    return number


def _dense_strides(like: torch.Tensor, sizes: list[int]) -> list[int]:
    """The strides the graph saw, where they are those of a dense tensor of these sizes."""
    strides = list(like.stride())
    if all(isinstance(stride, int) for stride in strides):
        expected = 1
        for stride, size in sorted(zip(strides, sizes, strict=True)):
            if size != 1 and stride != expected:
                break
            expected *= size
        else:
            return strides
    products = itertools.accumulate(reversed(sizes[1:]), lambda a, b: a * b, initial=1)
    return list(reversed(list(products))) if sizes else []


def _constants(program: ExportedProgram, values: Sequence[Value]) -> dict[str, torch.Tensor]:
    held = program.constants
    return {
        value.target: held[value.target].detach()
        for value in values
        if value.target is not None
        and value.kind in ("buffer", "constant")
        and value.target in held
    }
