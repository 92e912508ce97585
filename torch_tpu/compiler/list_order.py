"""In-place operators over lists whose entries share memory, in the order of the entries.

``torch._foreach_mul_([x, x], 2)`` multiplies ``x`` by 4. AOTAutograd makes of it an operator that
computes all entries from the values before the call, and copies. Where an entry has memory that an
earlier one writes, the call becomes one call for each entry before that.
"""

from __future__ import annotations

import math
import operator
from typing import Any, NamedTuple

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_aggregate

_OPERATORS = ("_foreach_", "_fused_", "_amp_foreach_")
# These read a tensor that is no list anew for each entry; the others take it for a number that they
# read beforehand.
_READ_AGAIN = ("_foreach_mul_", "_foreach_div_", "_amp_foreach_non_finite_check_and_unscale_")


def order_entries(graph: GraphModule) -> int:
    """Divide the calls of a Dynamo graph whose entries depend on each other; says how many."""
    divided = 0
    for part in graph.modules():
        if not isinstance(part, GraphModule):
            continue
        found = [node for node in part.graph.nodes if _order_matters(node)]
        for node in found:
            _divide(node)
        if found:
            part.graph.lint()
            part.recompile()
        divided += len(found)
    return divided


class _Extent(NamedTuple):
    """The memory from a tensor's first element to its last, in bytes."""

    storage: int
    begin: float
    end: float
    entry: int
    written: bool


def _extent(value: Any, entry: int = 0, written: bool = False) -> _Extent | None:
    tensor = value.meta.get("example_value") if isinstance(value, Node) else None
    if not isinstance(tensor, torch.Tensor):
        return None
    storage = tensor.untyped_storage()._cdata
    start = tensor.storage_offset()
    if any(type(n) is not int for n in (start, *tensor.shape, *tensor.stride())):
        return _Extent(storage, 0, math.inf, entry, written)  # symbols: it may be all of it
    if 0 in tensor.shape:
        return None
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    begin, end = (int(n) * tensor.element_size() for n in (start, start + last + 1))
    return _Extent(storage, begin, end, entry, written)


def _written(name: str, node: Node) -> list[Any]:
    """The lists that the call writes."""
    packet = getattr(torch.ops.aten, name)
    schema = getattr(packet, packet.overloads()[0])._schema
    given = dict(zip((a.name for a in schema.arguments), node.args, strict=False)) | node.kwargs
    return [given[a.name] for a in schema.arguments if a.is_write and _is_list(given.get(a.name))]


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _lists(node: Node) -> list[Any]:
    """The arguments that have an entry for each entry of the first."""
    first: Any = node.args[0]
    values: list[Any] = [*node.args, *node.kwargs.values()]
    return [v for v in values if _is_list(v) and len(v) == len(first)]


def _order_matters(node: Node) -> bool:
    """Whether this is such an operator, and an entry has memory that an earlier one writes."""
    name = _name(node)
    if node.op != "call_function" or not (name.startswith(_OPERATORS) and name.endswith("_")):
        return False
    if not node.args or not _is_list(node.args[0]):
        return False
    last = len(node.args[0]) - 1  # type: ignore[arg-type]
    written = _written(name, node)
    extents = [
        _extent(value, entry, any(values is w for w in written))
        for values in _lists(node)
        for entry, value in enumerate(values)
    ]
    if name in _READ_AGAIN:  # for the last entry as well
        extents += [_extent(value, last) for value in (*node.args, *node.kwargs.values())]
    known = sorted(extent for extent in extents if extent is not None)
    for place, a in enumerate(known):
        for other in range(place + 1, len(known)):
            b = known[other]
            if b.storage != a.storage or b.begin >= a.end:
                break
            if (a.written and a.entry < b.entry) or (b.written and b.entry < a.entry):
                return True
    return False


def _name(node: Node) -> str:
    return str(getattr(node.target, "__name__", "")).partition(".")[0]


def _divide(node: Node) -> None:
    lists = _lists(node)
    first: Any = node.args[0]
    before: dict[Node, Node] = {}  # numbers, as they are before the call
    if _name(node) not in _READ_AGAIN:
        with node.graph.inserting_before(node):
            for value in (*node.args, *node.kwargs.values()):
                if isinstance(value, Node) and _extent(value) is not None:
                    before[value] = node.graph.call_function(torch.clone, (value,))

    def entry(value: Any, index: int) -> Any:
        if isinstance(value, Node):
            return before.get(value, value)
        return [value[index]] if any(value is whole for whole in lists) else value

    with node.graph.inserting_before(node):
        for index in range(len(first)):
            one = node.graph.create_node(
                "call_function",
                node.target,
                tuple(entry(value, index) for value in node.args),
                {name: entry(value, index) for name, value in node.kwargs.items()},
            )
            one.meta = {k: v for k, v in node.meta.items() if k != "example_value"}
    # What it returns is what it wrote to.
    for user in list(node.users):
        if user.target is operator.getitem and isinstance(user.args[1], int):
            user.replace_all_uses_with(first[user.args[1]])
            node.graph.erase_node(user)
        else:
            user.args = _with_list(user.args, node)
            user.kwargs = _with_list(user.kwargs, node)
    node.graph.erase_node(node)


def _with_list(value: Any, node: Node) -> Any:
    return map_aggregate(value, lambda v: list(node.args[0]) if v is node else v)  # type: ignore[arg-type]
