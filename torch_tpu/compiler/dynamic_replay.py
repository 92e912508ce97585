"""Calls a graph's operators on padded tensors, so that they give what is right for any padding.

An operator's rule says where its results' elements lie, and masks the padding that could reach
them. An operator without a rule is refused: the graph is then lowered once for each size.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_aggregate

from torch_tpu.compiler.dynamic_sizes import (
    Dim,
    Factor,
    Number,
    Padded,
    Sizes,
    UnsupportedError,
    evaluate,
    is_static,
    static_dim,
    true_size,
)
from torch_tpu.compiler.replay import OwnTensors, Replay

Rule = Callable[["Call"], Any]
_RULES: dict[Any, Rule] = {}


def lowers(*targets: Any) -> Callable[[Rule], Rule]:
    """Registers the rule of operators: overloads, or packets for all their overloads."""

    def register(rule: Rule) -> Rule:
        for target in targets:
            if isinstance(target, torch._ops.OpOverloadPacket):
                for overload in target.overloads():
                    _RULES[getattr(target, overload)] = rule
            else:
                _RULES[target] = rule
        return rule

    return register


def registered(target: Any) -> Rule | None:
    """The rule of an operator."""
    return _RULES.get(target)


class Call:
    """An operator's call: its arguments by name, and what PyTorch says of its results."""

    def __init__(
        self,
        replay: PaddedReplay,
        target: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        value: Any,
    ) -> None:
        self.replay = replay
        self.target = target
        self.value = value
        self.arguments: dict[str, Any] = {}
        for place, argument in enumerate(target._schema.arguments):
            if place < len(args):
                self.arguments[argument.name] = args[place]
            elif argument.name in kwargs:
                self.arguments[argument.name] = kwargs[argument.name]
            elif argument.has_default_value():
                self.arguments[argument.name] = argument.default_value

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    def refuse(self, why: str) -> UnsupportedError:
        """What to raise when the call cannot be lowered."""
        return UnsupportedError(f"{self.target}: {why}")

    def dims(self, name: str) -> tuple[Dim, ...]:
        """The dimensions of an argument."""
        return dims_of(self.arguments[name])

    def tensor(self, name: str) -> torch.Tensor:
        """An argument with its padding."""
        return tensor_of(self.arguments[name])

    def masked(self, name: str, fill: float | bool, dims: Iterable[int] | None = None) -> Any:
        """An argument with this number in the padding of these dimensions (all of them)."""
        return self.replay.masked(self.arguments[name], fill, dims)

    def has_padding(self, name: str, dims: Iterable[int]) -> bool:
        """Whether an argument has padding in some of these dimensions."""
        own = self.dims(name)
        return any(not is_static(own[dim]) for dim in dims)

    def same(self, left: Dim, right: Dim) -> bool:
        """Whether the elements of two dimensions, of one size, lie at the same places.

        That sizes are equal may be what the operator asks for and PyTorch does not know of its
        symbols; it is then checked at each call.
        """
        if left == right:
            return True
        if len(left) != len(right):
            return False
        pairs = list(zip(left, right, strict=True))
        if any(a.padded != b.padded or a.is_static != b.is_static for a, b in pairs):
            return False
        self.replay.equal_sizes.update((a.size, b.size) for a, b in pairs if a != b)
        return True

    def number(self, name: str) -> Any:
        """An argument that must be the same at all calls."""
        value = self.arguments[name]
        if _contains(value, Number):
            raise self.refuse(f"'{name}' depends on a size")
        return value

    def dim(self, name: str = "dim", of: str = "self") -> int:
        """A dimension that an argument names, counted from the front."""
        rank = max(len(self.dims(of)), 1)
        return int(self.number(name)) % rank

    def run(self, /, **changes: Any) -> Any:
        """Calls the operator, on the padding as well, with some arguments changed."""
        arguments = {**self.arguments, **changes}
        for name, value in arguments.items():
            if _contains(value, Number):
                raise self.refuse(f"'{name}' depends on a size")
        positional = []
        named = {}
        for argument in self.target._schema.arguments:
            if argument.name not in arguments:
                continue
            value = map_aggregate(arguments[argument.name], _without_dims)
            if argument.kwarg_only:
                named[argument.name] = value
            else:
                positional.append(value)
        if named.get("device") is not None:
            named["device"] = self.replay.device
        return self.target(*positional, **named)

    def result_sizes(self, index: int | None = None) -> tuple[sympy.Expr, ...]:
        """The sizes that PyTorch gives the result, or one of the results."""
        value = self.value if index is None else self.value[index]
        return self.replay.sizes_of(value)


def dims_of(value: Any) -> tuple[Dim, ...]:
    """The dimensions of a tensor, padded or not."""
    if isinstance(value, Padded):
        return value.dims
    return tuple(static_dim(size) for size in value.shape)


def tensor_of(value: Any) -> torch.Tensor:
    """A tensor with its padding."""
    return value.tensor if isinstance(value, Padded) else value


def padded(tensor: torch.Tensor, dims: Sequence[Dim]) -> torch.Tensor | Padded:
    """A tensor with these dimensions."""
    if all(is_static(dim) for dim in dims):
        return tensor
    return Padded(tensor, tuple(dims))


def single(dim: Dim) -> Factor:
    """The only factor of a dimension, whose elements are therefore in front."""
    if not dim:
        return Factor(sympy.Integer(1), 1)
    if len(dim) > 1:
        raise UnsupportedError(f"a dimension of {true_size(dim)} with padding in between")
    return dim[0]


class Expressions:
    """What a graph's sizes and numbers are made of: their values are operands of its program."""

    def __init__(self, graph: GraphModule, sizes: Sizes) -> None:
        found: dict[sympy.Expr, None] = {}
        of_tensors: dict[sympy.Expr, None] = {}

        def collect(value: Any) -> None:
            if isinstance(value, torch.Tensor):
                for size in value.shape:
                    expression = sizes.expression(size)
                    if not expression.is_number:
                        found[expression] = of_tensors[expression] = None
            elif isinstance(value, torch.SymInt | torch.SymFloat):
                expression = sizes.expression(value)
                if not expression.is_number:
                    found[expression] = None
            elif isinstance(value, list | tuple):
                for entry in value:
                    collect(entry)

        for node in graph.graph.nodes:
            collect(node.meta.get("val"))
        for expression in list(of_tensors):
            for symbol in sorted(expression.free_symbols, key=str):
                found[symbol] = of_tensors[symbol] = None
        self.of_tensors = list(of_tensors)
        self.whole = [e for e in found if e.is_integer]
        self.floats = [e for e in found if not e.is_integer]
        self.symbols = sorted({s for e in found for s in e.free_symbols}, key=str)


class PaddedReplay(Replay):
    """Interprets a graph on padded tensors, inside the trace of one program.

    ``padded_symbols`` are the sizes that symbols are padded to, ``whole`` and ``floats`` the values
    of the ``expressions``, and ``structures`` dimensions of the inputs.
    """

    def __init__(
        self,
        graph: GraphModule,
        own: OwnTensors,
        own_values: Sequence[torch.Tensor],
        sizes: Sizes,
        expressions: Expressions,
        padded_symbols: Mapping[sympy.Symbol, int],
        values: tuple[torch.Tensor, torch.Tensor],
        device: torch.device,
    ) -> None:
        super().__init__(graph, own, own_values, device)
        self.sizes = sizes
        self._whole = {e: place for place, e in enumerate(expressions.whole)}
        self._floats = {e: place for place, e in enumerate(expressions.floats)}
        self._padded = padded_symbols
        self._values = values
        self._masks: dict[Dim, torch.Tensor] = {}
        self._structures: dict[sympy.Expr, Dim] = {}
        self._node: Node | None = None
        self.equal_sizes: set[tuple[sympy.Expr, sympy.Expr]] = set()  # at all calls
        self.writes: dict[Node, Padded] = {}  # to inputs of dynamic sizes

    # --- Sizes ----------------------------------------------------------------------------------

    @property
    def structures(self) -> list[Dim]:
        """The dimensions that were remembered."""
        return list(self._structures.values())

    def remember(self, dim: Dim) -> None:
        """Lets dimensions of constant content take the form that this one of their size has."""
        if not is_static(dim):
            self._structures.setdefault(true_size(dim), dim)

    def sizes_of(self, value: Any) -> tuple[sympy.Expr, ...]:
        """The sizes of a tensor that PyTorch describes."""
        return tuple(self.sizes.expression(size) for size in value.shape)

    def dim(self, size: sympy.Expr, constant: bool = False) -> Dim:
        """A dimension of this size with its elements in front.

        With ``constant``, what it holds is the same all along, so that they may lie anywhere.
        """
        if size == 1:
            return ()
        if size.is_number:
            return static_dim(int(size))
        if constant and size in self._structures:
            return self._structures[size]
        return (Factor(size, int(evaluate(size, self._padded))),)

    def value_of(self, expression: sympy.Expr) -> torch.Tensor:
        """A number that depends on sizes, as a 0-d tensor of int64 or float64."""
        if expression.is_number:
            return torch.full((), int(expression), dtype=torch.int64, device=self.device)
        if expression in self._whole:
            return self._values[0][self._whole[expression]]
        if expression in self._floats:
            return self._values[1][self._floats[expression]]
        if expression.is_Pow and expression.exp.is_Integer and expression.exp > 0:
            return self.value_of(expression.base) ** int(expression.exp)
        if not (expression.is_Mul or expression.is_Add):
            raise UnsupportedError(f"size {expression}: not one of the graph's")
        combine = torch.mul if expression.is_Mul else torch.add
        first, *others = expression.args
        value = self.value_of(first)
        for other in others:
            value = combine(value, self.value_of(other))
        return value

    def count(self, dims: Iterable[Dim]) -> torch.Tensor:
        """How many elements these dimensions have together, as a 0-d tensor."""
        size = sympy.Integer(1)
        for dim in dims:
            size = size * true_size(dim)
        return self.value_of(size)

    def positions(self, factor: Factor) -> torch.Tensor:
        """The places of a factor, numbered."""
        return torch.arange(factor.padded, dtype=torch.int64, device=self.device)

    # --- Masks ----------------------------------------------------------------------------------

    def valid(self, dim: Dim) -> torch.Tensor:
        """Which places of a dimension hold elements."""
        if dim not in self._masks:
            mask = torch.ones((1,) * len(dim), dtype=torch.bool, device=self.device)
            for axis, factor in enumerate(dim):
                shape = [1] * len(dim)
                shape[axis] = factor.padded
                if factor.is_static:
                    part = torch.ones(shape, dtype=torch.bool, device=self.device)
                else:
                    # 32 bits: TPUs make longer numbers of two.
                    places = torch.arange(factor.padded, dtype=torch.int32, device=self.device)
                    part = (places < self.value_of(factor.size).to(torch.int32)).reshape(shape)
                mask = torch.logical_and(mask, part)
            self._masks[dim] = mask.reshape(-1)
        return self._masks[dim]

    def mask(self, dims: Sequence[Dim], which: Iterable[int] | None = None) -> torch.Tensor | None:
        """Which places hold elements, to be broadcast; None if all do."""
        mask: torch.Tensor | None = None
        for axis in range(len(dims)) if which is None else which:
            if is_static(dims[axis]):
                continue
            shape = [1] * len(dims)
            shape[axis] = -1
            part = self.valid(dims[axis]).reshape(shape)
            mask = part if mask is None else torch.logical_and(mask, part)
        return mask

    def masked(self, value: Any, fill: float | bool, which: Iterable[int] | None = None) -> Any:
        """A tensor with ``fill`` in the padding of these dimensions (all of them)."""
        if not isinstance(value, Padded):
            return value
        mask = self.mask(value.dims, which)
        if mask is None:
            return value
        return Padded(value.tensor.masked_fill(torch.logical_not(mask), fill), value.dims)

    # --- Writes ---------------------------------------------------------------------------------

    def write(self, value: Padded) -> None:
        """Notes the new value of the input that the node at hand writes to."""
        assert self._node is not None
        place = self._node.args[0]
        if not isinstance(place, Node) or place.op != "placeholder":
            raise UnsupportedError(f"{self._node.target}: a part of an input is written to")
        self.writes[place] = value

    # --- Interpretation -------------------------------------------------------------------------

    def run_node(self, n: Node) -> Any:
        """Runs one node."""
        self._node = n
        return super().run_node(n)

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls an operator by its rule, where padding or sizes have to do with it."""
        assert self._node is not None
        value = self._node.meta.get("val")
        if isinstance(value, torch.SymInt | torch.SymFloat):
            return self._number(value)
        if target is operator.getitem:
            return args[0][args[1]]
        if not isinstance(target, torch._ops.OpOverload):
            if _contains((args, kwargs), (Padded, Number)):
                raise UnsupportedError(f"{target}: no rule for padded tensors")
            return super().call_function(target, args, kwargs)
        if not _contains((args, kwargs), (Padded, Number)) and not self._is_dynamic(value):
            return super().call_function(target, args, kwargs)
        call = Call(self, target, args, kwargs, value)
        rule = registered(target)
        if rule is None and torch.Tag.pointwise in target.tags:
            rule = registered(torch.Tag.pointwise)
        if rule is None:
            raise call.refuse("no rule for padded tensors")
        result = rule(call)
        self._check(call, result, value)
        return result

    def _number(self, value: Any) -> Any:
        expression = self.sizes.expression(value)
        if expression.is_number:
            return int(expression) if expression.is_integer else float(expression)
        return Number(expression)

    def _is_dynamic(self, value: Any) -> bool:
        if isinstance(value, torch.Tensor):
            return any(not size.is_number for size in self.sizes_of(value))
        if isinstance(value, list | tuple):
            return any(self._is_dynamic(entry) for entry in value)
        return False

    def _check(self, call: Call, result: Any, value: Any) -> None:
        """The rule has to give what PyTorch says that the operator gives."""
        if isinstance(value, list | tuple):
            for one, its_value in zip(result, value, strict=True):
                self._check(call, one, its_value)
            return
        if not isinstance(value, torch.Tensor) or result is None:
            return
        sizes = self.sizes_of(value)
        dims = dims_of(result)
        if len(dims) != len(sizes) or not all(map(self._has_size, dims, sizes)):
            given = [str(true_size(dim)) for dim in dims]
            raise call.refuse(f"gave sizes {given} where {[str(s) for s in sizes]} were expected")
        if tensor_of(result).dtype != value.dtype:
            raise call.refuse(f"gave {tensor_of(result).dtype} where {value.dtype} was expected")
        for dim in dims:
            self.remember(dim)

    def _has_size(self, dim: Dim, size: sympy.Expr) -> bool:
        own = true_size(dim)
        if own == size or sympy.expand(own - size) == 0:
            return True
        if own.is_number or size.is_number:
            return False
        if evaluate(own, self._padded) != evaluate(size, self._padded):
            return False
        self.equal_sizes.add((own, size))
        return True


def _contains(value: Any, kinds: Any) -> bool:
    if isinstance(value, kinds):
        return True
    if isinstance(value, list | tuple):
        return any(_contains(entry, kinds) for entry in value)
    if isinstance(value, dict):
        return any(_contains(entry, kinds) for entry in value.values())
    return False


def _without_dims(value: Any) -> Any:
    return value.tensor if isinstance(value, Padded) else value
