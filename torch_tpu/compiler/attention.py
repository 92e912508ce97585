"""Attention written as products and a softmax, as the one operator that does it.

Its forward keeps a number per row for the backward instead of the probabilities, which XLA cannot
find out: it sees the two programs one by one.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule, Node

F = torch.nn.functional

_PRODUCTS = (operator.matmul, torch.matmul, "matmul")
_MULTIPLICATIONS = (operator.mul, torch.mul, "mul")
_DIVISIONS = (operator.truediv, torch.div, torch.true_divide, "div")
_ADDITIONS = (operator.add, torch.add, "add")
_MASKED_FILLS = ("masked_fill", torch.masked_fill)
_SOFTMAXES = (F.softmax, torch.softmax, "softmax")
_CASTS = ("to", "type_as", "float", "half", "bfloat16")


def fuse_attention(graph: GraphModule) -> int:
    """Replace ``softmax(q @ k.mT * scale + mask) @ v`` in a Dynamo graph; says how often.

    The mask may be added, or be what is filled with -inf. Rows that are masked as a whole are then
    what the operator makes of them. Dropout of the probabilities is left as it is written, since
    the operator draws other numbers, and so are symbolic sizes.
    """
    matches = [m for m in map(_match, graph.graph.nodes) if m is not None]
    for match in matches:
        match.replace(graph)
    if matches:
        graph.graph.lint()
        graph.recompile()
    return len(matches)


@dataclass
class _Attention:
    output: Node
    value: Node
    inner: list[Node] = field(default_factory=list)  # from the output's argument upwards
    query: Node | None = None
    transposed_key: Node | None = None
    scale: float = 1.0
    mask: Node | None = None
    is_filled: bool = False  # the mask says what to leave out

    def replace(self, graph: GraphModule) -> None:
        new = graph.graph
        with new.inserting_before(self.output):
            key = new.call_method("transpose", (self.transposed_key, -2, -1))
            mask = self.mask
            if mask is not None and self.is_filled:
                mask = new.call_function(torch.logical_not, (mask,))
            fused = new.call_function(
                F.scaled_dot_product_attention,
                (self.query, key, self.value),
                {"attn_mask": mask, "scale": self.scale},
            )
            out = new.call_method("contiguous", (fused,))
        for node in (fused, out):
            node.meta = dict(self.output.meta)
        self.output.replace_all_uses_with(out)
        for node in (self.output, *self.inner):
            new.erase_node(node)


def _match(output: Node) -> _Attention | None:
    if not _is(output, _PRODUCTS) or len(output.args) != 2:
        return None
    node, value = output.args
    if not isinstance(node, Node) or not isinstance(value, Node):
        return None
    found = _Attention(output, value)
    node = _skip_to_softmax(node, found)
    if node is None or not _is(node, _SOFTMAXES) or not _is_over_last(node):
        return None
    node = _take(node, found)
    while node is not None and not _is(node, _PRODUCTS):
        node = _step(node, found)
    if node is None or len(node.args) != 2 or not _is_used_once(node):
        return None
    query, key = node.args
    if not isinstance(query, Node) or not isinstance(key, Node):
        return None
    found.inner.append(node)
    found.query, found.transposed_key = query, key
    return found if _fits(found, node) else None


def _skip_to_softmax(node: Node, found: _Attention) -> Node | None:
    """Past casts of the probabilities, and dropout that drops nothing."""
    while _is_used_once(node) and not _is(node, _SOFTMAXES):
        if _is(node, (F.dropout,)):
            if _argument(node, 1, "p", 0.5) != 0 and _argument(node, 2, "training", True):
                return None
        elif not _is(node, _CASTS):
            return None
        taken = _take(node, found)
        if taken is None:
            return None
        node = taken
    return node if _is_used_once(node) else None


def _step(node: Node, found: _Attention) -> Node | None:
    """Past what is done to the scores before the softmax; None where that is something else."""
    if not _is_used_once(node):
        return None
    other = node.args[1] if len(node.args) > 1 else None
    if _is(node, (*_MULTIPLICATIONS, *_DIVISIONS)) and isinstance(other, int | float):
        if other <= 0:
            return None
        found.scale *= 1 / other if _is(node, _DIVISIONS) else other
        return _take(node, found)
    if found.mask is not None or not isinstance(other, Node):
        return None
    if _is(node, _MASKED_FILLS) and _argument(node, 2, "value", 0) == -math.inf:
        found.mask, found.is_filled = other, True
        return _take(node, found)
    if _is(node, _ADDITIONS) and not node.kwargs and found.scale == 1:
        found.mask = other
        return _take(node, found)
    return None


def _fits(found: _Attention, scores: Node) -> bool:
    tensors = [_value(n) for n in (found.query, found.transposed_key, found.value, found.output)]
    product = _value(scores)
    if product is None or any(t is None or not _is_static(t) for t in tensors):
        return False
    query, key, value, output = (t for t in tensors if t is not None)
    if not query.is_floating_point() or any(t.dtype != query.dtype for t in (key, value, output)):
        return False
    if query.dim() not in (3, 4) or any(t.shape[:-2] != query.shape[:-2] for t in (key, value)):
        return False
    if found.mask is None:
        return True
    mask = _value(found.mask)
    if mask is None or not _is_static(mask) or mask.dim() > query.dim():
        return False
    if torch.broadcast_shapes(mask.shape, product.shape) != product.shape:
        return False
    return mask.dtype == (torch.bool if found.is_filled else query.dtype)


def _take(node: Node, found: _Attention) -> Node | None:
    found.inner.append(node)
    source = node.args[0]
    return source if isinstance(source, Node) else None


def _is(node: Node, targets: Iterable[Any]) -> bool:
    return node.op in ("call_function", "call_method") and node.target in targets


def _is_used_once(node: Node) -> bool:
    return len(node.users) == 1


def _is_over_last(node: Node) -> bool:
    if len(node.args) > 2 or node.kwargs.get("dtype") not in (None, torch.float32):
        return False
    dim = _argument(node, 1, "dim", None)
    value = _value(node)
    return value is not None and dim in (-1, value.dim() - 1)


def _argument(node: Node, place: int, name: str, default: Any) -> Any:
    return node.args[place] if place < len(node.args) else node.kwargs.get(name, default)


def _value(node: Node | None) -> torch.Tensor | None:
    value = node.meta.get("example_value") if node is not None else None
    return value if isinstance(value, torch.Tensor) else None


def _is_static(tensor: torch.Tensor) -> bool:
    return all(isinstance(size, int) for size in tensor.shape)
