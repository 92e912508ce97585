"""Sizes that change from call to call: what they are true to, and what they are padded to.

A graph of symbolic sizes is lowered once for all sizes up to a padded one. A tensor of the graph is
then larger than it says, along the dimensions that depend on a symbol, and where its own elements
lie among the padding is described by ``Dim``.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy.functions import FloorDiv


class UnsupportedError(Exception):
    """The graph cannot be lowered for padded tensors; the message begins with the operator."""


@dataclass(frozen=True)
class Factor:
    """A part of a dimension: the first ``size`` of ``padded`` places hold elements."""

    size: sympy.Expr
    padded: int

    @property
    def is_static(self) -> bool:
        """Whether it is the same at all calls, and so without padding."""
        return bool(self.size.is_number)


# The factors of a dimension, the last one varying fastest, without those of size 1. After
# [batch, length] -> [batch * length] the elements of a sequence are followed by its padding.
Dim = tuple[Factor, ...]


def static_dim(size: int) -> Dim:
    """A dimension without padding."""
    return () if size == 1 else (Factor(sympy.Integer(size), size),)


def is_static(dim: Dim) -> bool:
    """Whether the dimension has no padding."""
    return all(factor.is_static for factor in dim)


def padded_size(dim: Dim) -> int:
    """Of how many places the dimension is made."""
    size = 1
    for factor in dim:
        size *= factor.padded
    return size


def true_size(dim: Dim) -> sympy.Expr:
    """How many elements the dimension has."""
    size = sympy.Integer(1)
    for factor in dim:
        size = size * factor.size
    return size


@dataclass(frozen=True)
class Padded:
    """A tensor with padding. What the padding holds is unknown: any number, NaN too."""

    tensor: torch.Tensor
    dims: tuple[Dim, ...]

    def __post_init__(self) -> None:
        shape, expected = tuple(self.tensor.shape), tuple(map(padded_size, self.dims))
        if shape != expected:
            raise UnsupportedError(f"padded sizes: expected {expected}, got {shape}")


@dataclass(frozen=True)
class Number:
    """A whole number (or a float made of some) that depends on sizes."""

    value: sympy.Expr


class Buckets:
    """Which sizes programs are made for, where none is declared to be the largest.

    Args:
        sizes: the sizes in ascending order; beyond the last one, multiples of it. None: powers of
            two, and 1.5 times them.
    """

    def __init__(self, sizes: Sequence[int] | None = None) -> None:
        self.sizes = None if sizes is None else sorted(set(sizes))
        if self.sizes is not None and (not self.sizes or self.sizes[0] < 1):
            raise ValueError(f"dynamic_buckets: expected positive sizes, got {sizes}")

    def round_up(self, size: int) -> int:
        """The bucket of a size."""
        if self.sizes is not None:
            place = bisect.bisect_left(self.sizes, size)
            if place < len(self.sizes):
                return self.sizes[place]
            return -(-size // self.sizes[-1]) * self.sizes[-1]
        if size < 3:
            return 2
        power = 1 << (size - 1).bit_length()
        return power // 4 * 3 if size <= power // 4 * 3 else power


class Sizes:
    """What is known of a graph's symbols, and the numbers its expressions have in a call."""

    def __init__(self, env: ShapeEnv, buckets: Buckets, bounds: Mapping[sympy.Symbol, int]) -> None:
        self._env = env
        self._buckets = buckets
        self._bounds = bounds

    def expression(self, size: Any) -> sympy.Expr:
        """A size of the graph as an expression of its symbols."""
        if isinstance(size, torch.SymInt | torch.SymFloat | torch.SymBool):
            return self._env.replace(size.node.expr).replace(FloorDiv, _divided)
        return sympy.sympify(size)

    def padded(self, symbols: Mapping[sympy.Symbol, int]) -> dict[sympy.Symbol, int]:
        """The sizes that the symbols are padded to, given their true ones."""
        return {symbol: self._padded(symbol, size) for symbol, size in symbols.items()}

    def _bounds_of(self, symbol: sympy.Symbol) -> list[int]:
        # Sizes that turned out to be equal are one symbol.
        return [bound for one, bound in self._bounds.items() if self._env.replace(one) == symbol]

    def _padded(self, symbol: sympy.Symbol, size: int) -> int:
        bound = min(self._bounds_of(symbol), default=None)
        if bound is not None and bound >= size:
            return bound
        bucket = self._buckets.round_up(size)
        known = self._env.var_to_range.get(symbol)
        # A size that the graph's guards rule out is never asked for.
        if known is not None and known.upper.is_Integer and size <= int(known.upper):
            bucket = min(bucket, int(known.upper))
        return bucket


def _divided(size: sympy.Expr, by: sympy.Expr) -> sympy.Expr:
    """A quotient of sizes, which PyTorch leaves as it is where it divides without remainder."""
    quotient = None if by.is_number else _quotient(size, by)
    return FloorDiv(size, by) if quotient is None else quotient


def evaluate(expression: sympy.Expr, symbols: Mapping[sympy.Symbol, int]) -> int | float:
    """The number an expression of sizes has."""
    value = expression.xreplace({s: sympy.Integer(n) for s, n in symbols.items()})
    if value.free_symbols:
        names = ", ".join(sorted(str(s) for s in value.free_symbols))
        raise UnsupportedError(f"size {expression}: unknown {names}")
    return int(value) if value.is_integer else float(value)


def regroup(factors: Iterable[Factor], sizes: Sequence[sympy.Expr]) -> tuple[Dim, ...]:
    """The dimensions of these sizes that factors, in their order, make up.

    Static factors may be split and joined at will. The first of two parts of another one keeps its
    elements in front when the second is static.
    """
    left = _joined(factors)
    dims = []
    for size in sizes:
        dim: list[Factor] = []
        missing = size
        while missing != 1:
            if not left:
                raise UnsupportedError(f"sizes {list(sizes)} from other ones")
            factor = left.pop(0)
            quotient = _quotient(missing, factor.size)
            if quotient is not None:
                dim.append(factor)
                missing = quotient
                continue
            rest = _quotient(factor.size, missing)
            if rest is None or not rest.is_Integer or factor.padded % int(rest):
                raise UnsupportedError(f"size {size} from {factor.size}")
            dim.append(Factor(missing, factor.padded // int(rest)))
            left = _joined([Factor(rest, int(rest)), *left])
            missing = sympy.Integer(1)
        dims.append(tuple(dim))
    if left:
        raise UnsupportedError(f"sizes {list(sizes)} from larger ones")
    return tuple(dims)


def _joined(factors: Iterable[Factor]) -> list[Factor]:
    joined: list[Factor] = []
    for factor in factors:
        if joined and joined[-1].is_static and factor.is_static:
            size = joined[-1].padded * factor.padded
            joined[-1] = Factor(sympy.Integer(size), size)
        else:
            joined.append(factor)
    return joined


def _quotient(size: sympy.Expr, by: sympy.Expr) -> sympy.Expr | None:
    """``size / by`` if it is a whole number whatever the symbols are."""
    if size == by:
        return sympy.Integer(1)
    if size.is_Integer and by.is_Integer:
        return sympy.Integer(int(size) // int(by)) if int(size) % int(by) == 0 else None
    quotient = sympy.cancel(size / by)
    numerator, denominator = quotient.as_numer_denom()
    if denominator != 1 or not numerator.is_polynomial():
        return None
    coefficients = (
        sympy.Poly(numerator, *sorted(numerator.free_symbols, key=str)).coeffs()
        if (numerator.free_symbols)
        else [numerator]
    )
    return quotient if all(c.is_Integer for c in coefficients) else None
