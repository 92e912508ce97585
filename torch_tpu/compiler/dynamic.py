"""Graphs of symbolic sizes: one program for many sizes, whose inputs are padded.

Each symbol is padded to its declared bound or to a bucket. The program takes tensors of the padded
sizes and the true sizes as numbers, so that it is the same for all sizes of a bucket. Inputs are
padded on the device, results are trimmed there; what a forward keeps for its backward stays padded.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from torch._functorch._aot_autograd.descriptors import SavedForBackwardsAOTOutput
from torch._guards import TracingContext
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _pytree as pytree

from torch_tpu import _C
from torch_tpu.compiler import (  # noqa: F401 - they register rules
    dynamic_images,
    dynamic_indexing,
    dynamic_losses,
    dynamic_pointwise,
    dynamic_products,
    dynamic_reductions,
    dynamic_views,
)
from torch_tpu.compiler.dynamic_replay import Expressions, PaddedReplay, tensor_of
from torch_tpu.compiler.dynamic_sizes import (
    Buckets,
    Dim,
    Factor,
    Number,
    Padded,
    Sizes,
    UnsupportedError,
    evaluate,
    padded_size,
    true_size,
)
from torch_tpu.compiler.parts import is_on_host
from torch_tpu.compiler.replay import OwnTensors, device_of, plain_dispatch

log = logging.getLogger(__name__)

Run = Callable[[list[Any]], list[Any]]
# The true sizes of a dimension's factors.
Form = tuple[sympy.Expr, ...]


@dataclass
class Family:
    """What the graphs of one Dynamo graph, its forward and its backward, know of each other."""

    buckets: Buckets = field(default_factory=Buckets)
    # The largest sizes given to ``mark_dynamic``, by symbol.
    bounds: Mapping[sympy.Symbol, int] | None = None
    # How results of the forward lie in their padding, by the names of their nodes.
    forms: dict[str, tuple[Form, ...]] = field(default_factory=dict)
    # The same of dimensions of other tensors in it.
    dims: dict[sympy.Expr, Form] = field(default_factory=dict)
    # Whether an operator was refused: then no graph is lowered for padded tensors any more.
    refused: bool = False


def _declared_bounds(env: ShapeEnv) -> dict[sympy.Symbol, int]:
    """The largest sizes given to ``mark_dynamic``, while Dynamo's graph is being compiled."""
    context = TracingContext.try_get()
    bounds: dict[sympy.Symbol, int] = {}
    if context is None:
        return bounds
    for symbolic in context.tensor_to_context.values():
        source = getattr(symbolic, "tensor_source", None)
        for axis, constraint in enumerate(getattr(symbolic, "constraint_sizes", None) or ()):
            symbol = env.source_to_var.get(f"{source.name}.size()[{axis}]") if source else None
            upper = getattr(getattr(constraint, "vr", None), "upper", None)
            if symbol is not None and isinstance(upper, int | sympy.Integer):
                bounds[symbol] = int(upper)
    return bounds


def _environment(graph: GraphModule) -> ShapeEnv | None:
    """What knows of the symbols in the inputs' sizes; None if there are none."""
    for node in graph.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        for number in value.shape if isinstance(value, torch.Tensor) else [value]:
            if isinstance(number, torch.SymInt | torch.SymFloat):
                return number.node.shape_env
    return None


def compile_dynamic(
    graph: GraphModule,
    name: str,
    family: Family,
    static: Callable[[], Run],
    options: dict[str, Any],
    backward: bool = False,
    origin: str = "",
) -> Run:
    """One program for all sizes of a bucket, for a graph with symbols.

    ``static`` compiles the graph for one size at a time, which is done when an operator of the
    graph has no rule for padded tensors. A ``backward`` is given what the forward of the family has
    kept, with its padding.
    """
    run = DynamicGraph(graph, name, family, static, options, backward, origin)

    def call(inputs: list[Any]) -> list[Any]:
        return run(inputs)

    call._boxed_call = True  # type: ignore[attr-defined]  # AOTAutograd: it may be given a list
    return call


def _num_devices(graph: GraphModule) -> int:
    """How many devices of ours the graph's tensors are on."""
    values = pytree.tree_leaves([node.meta.get("val") for node in graph.graph.nodes])
    return len({v.device for v in values if isinstance(v, torch.Tensor) and v.device.type == "tpu"})


class _UnequalError(Exception):
    """Sizes of this call are not equal where an operator asks for it: the operator is to say so."""


@dataclass(frozen=True)
class _Output:
    """A result of the program: the dimensions of its tensor, or a number that is known here."""

    dims: tuple[Dim, ...] | None = None
    number: sympy.Expr | None = None


@dataclass(frozen=True)
class _Layout:
    """How a tensor lies in its storage."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


@dataclass
class _Plan:
    """What calls of one set of true sizes have in common."""

    symbols: dict[sympy.Symbol, int]
    padded: dict[sympy.Symbol, int]
    values: dict[torch.device, list[torch.Tensor]] = field(default_factory=dict)
    pads: dict[int, tuple[tuple[int, ...], tuple[int, ...], tuple[Dim, ...]]] = field(
        default_factory=dict
    )
    checked: int = 0  # how many equal sizes were
    unequal: bool = False
    layouts: dict[int, _Layout] = field(default_factory=dict)
    programs: dict[tuple[Any, ...], Run] = field(default_factory=dict)

    @property
    def origin(self) -> str:
        """Why there are the small programs of these sizes."""
        sizes = ", ".join(f"{symbol} = {size}" for symbol, size in self.symbols.items())
        return f"the true sizes {sizes} are new"


class DynamicGraph:
    """A graph with symbols as programs, one for each set of padded sizes."""

    def __init__(
        self,
        graph: GraphModule,
        name: str,
        family: Family,
        static: Callable[[], Run],
        options: dict[str, Any],
        backward: bool,
        origin: str = "",
    ) -> None:
        env = _environment(graph)
        assert env is not None
        self._graph = graph
        self._name = name
        self._family = family
        # How what the forward has kept lies in its padding.
        self._kept_forms = family.forms if backward else {}
        self._make_static = static
        self._static: Run | None = None
        if family.bounds is None:
            family.bounds = _declared_bounds(env)
        self._sizes = Sizes(env, family.buckets, family.bounds)
        self._expressions = Expressions(graph, self._sizes)
        self._own = OwnTensors(graph)
        self._inputs: list[Node] = list(graph.graph.find_nodes(op="placeholder"))
        self._sources: dict[sympy.Symbol, tuple[int, int | None]] | None = None
        self._forms: dict[int, tuple[Form, ...]] | None = None
        (output,) = graph.graph.find_nodes(op="output")
        self._results: list[Any] = list(output.args[0])
        self._on_host = [place for place, result in enumerate(self._results) if is_on_host(result)]
        kinds = output.meta.get("desc") or [None] * len(self._results)
        self._kept = [isinstance(kind, SavedForBackwardsAOTOutput) for kind in kinds]
        if _num_devices(graph) > 1:
            family.refused = True
            log.warning("%s: each size is compiled for itself: it has several devices", name)
        self._plans: dict[tuple[int, ...], _Plan | None] = {}
        # What operators ask of sizes, and PyTorch does not know of.
        self._equal_sizes: set[tuple[sympy.Expr, sympy.Expr]] = set()
        self._outputs: dict[tuple[int, ...], list[_Output]] = {}
        # Inputs of dynamic sizes that the graph writes to: their new values follow the outputs.
        self._written: list[int] = []
        self._lowering = threading.Lock()
        self._lowered_for: _Plan | None = None
        with plain_dispatch():  # compiling is under a mode of stand-ins for tensors
            held = [tensor.detach() for tensor in self._own.tensors]
        self._program = _C.CompiledGraph(name, self._body, held, [], options, origin)

    def __call__(self, inputs: list[Any]) -> list[Any]:
        """Runs the graph; ``inputs`` is emptied."""
        given = list(inputs)
        inputs.clear()
        if not self._family.refused and not _C.checks_nan():  # what padding holds is no matter
            try:
                plan = self._plan(given)
                if plan is not None and self._are_equal(plan):
                    results = self._run(plan, given)
                    if self._are_equal(plan):
                        return results
            except _UnequalError:
                pass
            except UnsupportedError as error:
                self._family.refused = True
                log.warning("%s: each size is compiled for itself: %s", self._name, error)
        if self._static is None:
            self._static = self._make_static()
        return self._static(self._without_padding(given))

    @property
    def num_programs(self) -> int:
        """For how many sets of padded sizes there is a program."""
        return int(self._program.num_programs)

    @property
    def is_padded(self) -> bool:
        """Whether sizes are padded, rather than compiled for each."""
        return not self._family.refused

    def texts(self) -> list[str]:
        """The StableHLO of the programs."""
        return list(self._program.texts())

    # --- Sizes ----------------------------------------------------------------------------------

    def _are_equal(self, plan: _Plan) -> bool:
        """Whether the operators get the equal sizes that they ask for."""
        if plan.checked < len(self._equal_sizes):
            plan.unequal = any(
                evaluate(a, plan.symbols) != evaluate(b, plan.symbols) for a, b in self._equal_sizes
            )
            plan.checked = len(self._equal_sizes)
        return not plan.unequal

    def _true_symbols(self, given: Sequence[Any]) -> dict[sympy.Symbol, int]:
        if self._sources is None:
            self._sources = self._find_sources()
        return {
            symbol: int(given[place]) if axis is None else given[place].shape[axis]
            for symbol, (place, axis) in self._sources.items()
        }

    def _find_sources(self) -> dict[sympy.Symbol, tuple[int, int | None]]:
        """Which input each symbol is, or is the size of: (place, axis)."""
        sources: dict[sympy.Symbol, tuple[int, int | None]] = {}
        for place, node in enumerate(self._inputs):
            described = node.meta.get("val")
            if isinstance(described, torch.SymFloat | torch.SymBool):
                raise UnsupportedError(f"{node.name}: an input that is a float or a bool")
            if isinstance(described, torch.SymInt):
                sources.setdefault(self._sizes.expression(described), (place, None))
        for place, node in enumerate(self._inputs):
            described = node.meta.get("val")
            # What a forward has kept may have its padding still.
            if isinstance(described, torch.Tensor) and node.name not in self._kept_forms:
                for axis, size in enumerate(described.shape):
                    sources.setdefault(self._sizes.expression(size), (place, axis))
        return {symbol: source for symbol, source in sources.items() if symbol.is_Symbol}

    def _plan(self, given: Sequence[Any]) -> _Plan | None:
        symbols = self._true_symbols(given)
        key = tuple(symbols.values())
        if key in self._plans:
            return self._plans[key]
        padded = self._padded_symbols(symbols)
        plan: _Plan | None = _Plan(symbols, padded)
        for expression in self._expressions.of_tensors:
            if not 0 <= evaluate(expression, symbols) <= evaluate(expression, padded):
                log.info("%s: %s is compiled for itself: size %s", self._name, key, expression)
                plan = None
        if plan is not None:
            sizes = [f"{symbols[s]} to {size}" for s, size in padded.items() if size]
            log.info("%s: sizes are padded: %s", self._name, ", ".join(sizes))
        if len(self._plans) >= _MAX_PLANS:
            self._plans.clear()
        self._plans[key] = plan
        return plan

    def _padded_symbols(self, symbols: Mapping[sympy.Symbol, int]) -> dict[sympy.Symbol, int]:
        padded = self._sizes.padded(symbols)
        # A number that is no tensor's size makes no difference to the program.
        return {s: size if s in self._expressions.of_tensors else 0 for s, size in padded.items()}

    def _input_forms(self) -> dict[int, tuple[Form, ...]]:
        """How the inputs of dynamic sizes lie in their padding."""
        if self._forms is None:
            self._forms = {}
            known = {
                tuple(map(_product, form)): form for form in reversed(self._kept_forms.values())
            }
            for place, node in enumerate(self._inputs):
                value = node.meta.get("val")
                if not isinstance(value, torch.Tensor):
                    continue
                sizes = tuple(self._sizes.expression(size) for size in value.shape)
                if all(size.is_number for size in sizes):
                    continue
                # A gradient's tensor has the size of a result of the forward.
                form = self._kept_forms.get(node.name) or known.get(sizes)
                self._forms[place] = form or tuple(() if s == 1 else (s,) for s in sizes)
        return self._forms

    def _dims(self, form: tuple[Form, ...], symbols: Mapping[sympy.Symbol, int]) -> tuple[Dim, ...]:
        return tuple(
            tuple(Factor(size, int(evaluate(size, symbols))) for size in sizes) for sizes in form
        )

    # --- Calls ----------------------------------------------------------------------------------

    def _run(self, plan: _Plan, given: list[Any]) -> list[Any]:
        tensors = self._padded_inputs(plan, given)
        padded = tuple(plan.padded.values())
        written: list[torch.Tensor] = []
        if padded in self._outputs:
            written = [given[place] for place in self._written]
            given.clear()  # otherwise they may be wanted for another attempt
        device = next((t.device for t in tensors if isinstance(t, torch.Tensor)), None)
        values = plan.values.get(device) if device is not None else None
        if values is None:
            values = self._values(plan, device or torch.device("tpu"))
        arguments = [*tensors, *values, *padded]
        if padded in self._outputs:
            results = self._program(arguments)
        else:
            with self._lowering:
                self._lowered_for = plan
                results = self._program(arguments)
            written = [given[place] for place in self._written]
        if written:
            self._write(plan, written, self._outputs[padded], results)
        return self._true_results(plan, self._outputs[padded], results)

    def _write(
        self,
        plan: _Plan,
        inputs: list[torch.Tensor],
        outputs: Sequence[_Output],
        results: list[Any],
    ) -> None:
        """Takes the inputs' new values from the end of the program's results."""
        count = len(results) - len(inputs)
        values = results[count:]
        del results[count:]
        write = plan.programs.get(("write",))
        if write is None:
            dims = [output.dims or () for output in outputs[count:]]

            def body(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
                with plain_dispatch():
                    for place, own in enumerate(dims):
                        value = without_padding(tensors[len(dims) + place], own, plan.symbols)
                        tensors[place].copy_(value)
                return []

            write = plan.programs["write",] = _C.CompiledGraph(
                f"{self._name}, written inputs", body, [], [], origin=plan.origin
            )
        write([*inputs, *values])

    def _values(self, plan: _Plan, device: torch.device) -> list[torch.Tensor]:
        """The true values of the graph's expressions, as operands of the program."""
        whole = [evaluate(e, plan.symbols) for e in self._expressions.whole]
        floats = [evaluate(e, plan.symbols) for e in self._expressions.floats]
        with plain_dispatch():
            values = [
                torch.tensor(whole, dtype=torch.int64).to(device),
                torch.tensor(floats, dtype=torch.float64).to(device),
            ]
        if not _C.in_dry_run():  # there they hold no data
            plan.values[device] = values
        return values

    def _padded_inputs(self, plan: _Plan, given: Sequence[Any]) -> list[Any]:
        """The tensors among the inputs, those of dynamic sizes with their padding."""
        tensors: list[Any] = []
        missing: list[int] = []
        dims: list[tuple[Dim, ...]] = []
        forms = self._input_forms()
        for place, value in enumerate(given):
            if not isinstance(value, torch.Tensor):
                continue
            tensors.append(value)
            if place not in forms:
                continue
            if place not in plan.pads:
                form = forms[place]
                own = self._dims(form, plan.padded)
                true = tuple(padded_size(dim) for dim in self._dims(form, plan.symbols))
                plan.pads[place] = (true, tuple(map(padded_size, own)), own)
            true, padded, own = plan.pads[place]
            shape = tuple(value.shape)
            if value.device.type != "tpu":
                with plain_dispatch():
                    tensors[-1] = value.to("tpu")
            if shape == padded:
                continue
            if shape != true:
                name = self._inputs[place].name
                raise UnsupportedError(f"{name}: expected sizes {true}, got {shape}")
            missing.append(len(tensors) - 1)
            dims.append(own)
        if missing:
            key = ("pad", *missing)
            pad = plan.programs.get(key)
            if pad is None:
                pad = plan.programs[key] = _mover(
                    f"{self._name}, padding",
                    lambda t, i: with_padding(t, dims[i], plan.symbols),
                    plan.origin,
                )
            for place, tensor in zip(missing, pad([tensors[p] for p in missing]), strict=True):
                # What is kept for a backward is not to be written to, in either.
                _C.share_version(tensor, tensors[place])
                tensors[place] = tensor
        return tensors

    def _body(self, inputs: list[Any]) -> list[Any]:
        try:
            with plain_dispatch():
                return self._lower(inputs)
        except (UnsupportedError, _UnequalError):
            raise
        except Exception as error:
            raise UnsupportedError(f"{type(error).__name__}: {error}") from error

    def _lower(self, inputs: list[Any]) -> list[Any]:
        own_values = inputs[len(inputs) - len(self._own.tensors) :]
        inputs = inputs[: len(inputs) - len(own_values)]
        symbols = self._symbols_in_order()
        sizes = inputs[len(inputs) - len(symbols) :]
        padded = dict(zip(symbols, sizes, strict=True))
        *tensors, whole, floats = inputs[: len(inputs) - len(symbols)]
        replay = PaddedReplay(
            self._graph,
            self._own,
            own_values,
            self._sizes,
            self._expressions,
            padded,
            (whole, floats),
            device_of(tensors),
        )
        forms = self._input_forms()
        given: list[Any] = []
        rest = iter(tensors)
        for place, node in enumerate(self._inputs):
            value = node.meta.get("val")
            if isinstance(value, torch.SymInt):
                expression = self._sizes.expression(value)
                given.append(int(expression) if expression.is_number else Number(expression))
            elif value is None or isinstance(value, int):
                given.append(value)
            elif not isinstance(value, torch.Tensor):
                raise UnsupportedError(f"{node.name}: an input that is a {type(value).__name__}")
            else:
                tensor = next(rest, None)
                if tensor is None:
                    raise UnsupportedError(f"{node.name}: a check of values is in the graph")
                if place in forms:
                    dims = self._dims(forms[place], padded)
                    for dim in dims:
                        replay.remember(dim)
                    tensor = Padded(tensor, dims)
                given.append(tensor)
        for one in self._family.dims.values():
            for dim in self._dims((one,), padded):
                replay.remember(dim)
        results = replay(*given)
        places = {node: place for place, node in enumerate(self._inputs)}
        self._written = [places[node] for node in replay.writes]
        self._equal_sizes |= replay.equal_sizes
        assert self._lowered_for is not None
        if not self._are_equal(self._lowered_for):
            raise _UnequalError
        for dim in replay.structures:
            self._family.dims.setdefault(true_size(dim), _form_of(dim))
        new_values = list(replay.writes.values())
        self._outputs[tuple(sizes)] = [self._output(r) for r in [*results, *new_values]]
        for node, result in zip(self._results, results, strict=True):
            if isinstance(result, Padded) and self._kept_forms is not self._family.forms:
                self._family.forms[node.name] = tuple(map(_form_of, result.dims))
        return [
            tensor_of(r) if isinstance(r, Padded | torch.Tensor) else None
            for r in [*results, *new_values]
        ]

    def _symbols_in_order(self) -> list[sympy.Symbol]:
        plan = next(plan for plan in self._plans.values() if plan is not None)
        return list(plan.symbols)

    def _output(self, result: Any) -> _Output:
        if isinstance(result, Number):
            return _Output(number=result.value)
        if isinstance(result, bool | int | float):
            return _Output(number=sympy.sympify(result))
        return _Output(dims=result.dims if isinstance(result, Padded) else None)

    def _true_results(
        self, plan: _Plan, outputs: Sequence[_Output], results: list[Any]
    ) -> list[Any]:
        """The results without their padding, and on the CPU where the graph says so."""
        cut: list[int] = []
        for place, output in enumerate(outputs[: len(results)]):
            if output.number is not None:
                results[place] = evaluate(output.number, plan.symbols)
            elif output.dims is not None and not self._kept[place]:
                view = self._view(self._layout(plan, place), output.dims, results[place])
                if view is None:
                    cut.append(place)
                else:
                    results[place] = view
        if cut:
            trim = plan.programs.get(("trim",))
            if trim is None:
                layouts = [self._layout(plan, place) for place in cut]
                dims = [outputs[place].dims for place in cut]
                trim = plan.programs["trim",] = _mover(
                    f"{self._name}, trimming",
                    lambda t, i: _laid_out(
                        without_padding(t, dims[i] or (), plan.symbols), layouts[i]
                    ),
                    plan.origin,
                )
            for place, tensor in zip(cut, trim([results[p] for p in cut]), strict=True):
                _C.share_version(tensor, results[place])
                results[place] = tensor
        for place in self._on_host:
            results[place] = results[place].cpu()
        return results

    def _layout(self, plan: _Plan, place: int) -> _Layout:
        """The sizes, strides and offset that PyTorch expects of a result.

        They are kept to the letter: of a view of an input it takes nothing else from the result.
        """
        if place not in plan.layouts:
            value = self._results[place].meta["val"]
            plan.layouts[place] = self._layout_of(value, plan.symbols)
        return plan.layouts[place]

    def _layout_of(self, value: torch.Tensor, symbols: Mapping[sympy.Symbol, int]) -> _Layout:
        """How a tensor lies that PyTorch describes."""

        def known(number: Any) -> int:
            return int(evaluate(self._sizes.expression(number), symbols))

        return _Layout(
            tuple(map(known, value.shape)),
            tuple(map(known, value.stride())),
            known(value.storage_offset()),
        )

    def _view(
        self, layout: _Layout, dims: tuple[Dim, ...], tensor: torch.Tensor
    ) -> torch.Tensor | None:
        """The elements of a padded result as they lie, if that is as PyTorch expects."""
        if any(len(dim) > 1 for dim in dims) or tensor.storage_offset() != layout.offset:
            return None
        for size, stride, expected in zip(
            layout.sizes, tensor.stride(), layout.strides, strict=True
        ):
            if size != 1 and stride != expected:
                return None
        # A tensor that was never larger, as far as autograd is concerned.
        with torch._C._ExcludeDispatchKeyGuard(_VIEWS):
            view = tensor.as_strided(layout.sizes, layout.strides, layout.offset)
        _C.share_version(view, tensor)
        return view

    def _without_padding(self, given: list[Any]) -> list[Any]:
        """The inputs, of which what the forward has kept may have its padding still.

        Without it they lie as PyTorch says, which the graph's views rely on.
        """
        forms = {
            place: self._kept_forms[node.name]
            for place, node in enumerate(self._inputs)
            if node.name in self._kept_forms and isinstance(given[place], torch.Tensor)
        }
        if not forms:
            return given
        symbols = self._true_symbols(given)
        padded = self._padded_symbols(symbols)
        for place, form in forms.items():
            dims = self._dims(form, padded)
            layout = self._layout_of(self._inputs[place].meta["val"], symbols)
            tensor = given[place]
            with plain_dispatch():
                if tuple(tensor.shape) != layout.sizes:
                    tensor = without_padding(tensor, dims, symbols)
                if tensor.stride() != layout.strides:
                    tensor = _laid_out(tensor, layout)
            given[place] = tensor
        return given


_MAX_PLANS = 1024
_VIEWS = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)


def _form_of(dim: Dim) -> Form:
    return tuple(factor.size for factor in dim)


def _product(form: Form) -> sympy.Expr:
    size = sympy.Integer(1)
    for factor in form:
        size = size * factor
    return size


def _mover(name: str, move: Callable[[torch.Tensor, int], torch.Tensor], origin: str) -> Run:
    """One program for what moves each of some tensors."""

    def body(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        with plain_dispatch():
            return [move(tensor, place) for place, tensor in enumerate(inputs)]

    return _C.CompiledGraph(name, body, [], [], origin=origin)


def _split(dims: Sequence[Dim], symbols: Mapping[sympy.Symbol, int]) -> list[tuple[int, int]]:
    """The true and the padded sizes of all factors."""
    return [(int(evaluate(factor.size, symbols)), factor.padded) for dim in dims for factor in dim]


def padding_value(dtype: torch.dtype) -> float:
    """What inputs are padded with. Results do not depend on it."""
    return 0


def with_padding(
    tensor: torch.Tensor, dims: Sequence[Dim], symbols: Mapping[sympy.Symbol, int]
) -> torch.Tensor:
    """A tensor of true sizes with its padding."""
    sizes = _split(dims, symbols)
    pads: list[int] = []
    for true, padded in reversed(sizes):
        pads += [0, padded - true]
    parts = tensor.reshape([true for true, _ in sizes])
    wide = torch.constant_pad_nd(parts, pads, padding_value(tensor.dtype))
    return wide.reshape([padded_size(dim) for dim in dims])


def without_padding(
    tensor: torch.Tensor, dims: Sequence[Dim], symbols: Mapping[sympy.Symbol, int]
) -> torch.Tensor:
    """The elements of a padded tensor."""
    sizes = _split(dims, symbols)
    parts = tensor.reshape([padded for _, padded in sizes])
    for axis, (true, _) in enumerate(sizes):
        parts = parts.narrow(axis, 0, true)
    return parts.reshape([int(evaluate(true_size(dim), symbols)) for dim in dims])


def _laid_out(tensor: torch.Tensor, layout: _Layout) -> torch.Tensor:
    """A copy of the tensor with these strides and this offset in its storage."""
    for axis, stride in enumerate(layout.strides):
        if stride == 0:
            tensor = tensor.narrow(axis, 0, min(tensor.shape[axis], 1))
    last = sum((n - 1) * s for n, s in zip(tensor.shape, layout.strides, strict=True))
    count = layout.offset + last + 1 if tensor.numel() else 0
    if layout.offset == 0 and count == tensor.numel():
        # Dense: a permutation of what lies in order.
        order = sorted(range(tensor.dim()), key=lambda axis: -layout.strides[axis])
        inverse = [order.index(axis) for axis in range(tensor.dim())]
        tensor = tensor.permute(order).clone(memory_format=torch.contiguous_format)
        tensor = tensor.permute(inverse)
    else:
        source = tensor
        storage = torch.empty(count, dtype=tensor.dtype, device=tensor.device)
        tensor = storage.as_strided(source.shape, layout.strides, layout.offset)
        tensor.copy_(source)
    return tensor.as_strided(layout.sizes, layout.strides, layout.offset)
