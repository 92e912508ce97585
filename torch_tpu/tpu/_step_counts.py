"""Whole numbers that a training step counts on the host."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_tpu.tpu._step_numbers import Numbers


class Count:
    """Stands for one while the step is traced.

    What Python computes of it and of other numbers is computed at every call; what is decided by it
    is a condition of the program. Nothing else can be done with it.
    """

    __slots__ = ("numbers", "read", "value", "what")
    __hash__: Any

    def __init__(self, numbers: Numbers, read: Callable[[], Any], value: int, what: str) -> None:
        self.numbers = numbers
        #: What gives it at a call, before anything of the call is done.
        self.read = read
        #: In the call that is traced.
        self.value = value
        self.what = what

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return int

    def __neg__(self) -> Any:
        return self.numbers.computed(operator.neg, (self,), self.what)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return self.numbers.computed(abs, (self,), self.what)

    def __bool__(self) -> bool:
        return bool(self.numbers.computed(bool, (self,), self.what))


def _computing(function: Callable[[Any, Any], Any], reflected: bool) -> Callable[[Any, Any], Any]:
    def method(self: Count, other: Any) -> Any:
        operands = (other, self) if reflected else (self, other)
        return self.numbers.computed(function, operands, self.what)

    return method


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
    _function = getattr(operator, _name)
    setattr(Count, f"__{_name}__", _computing(_function, False))
    setattr(Count, f"__r{_name}__", _computing(_function, True))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Count, f"__{_name}__", _computing(getattr(operator, _name), False))


def _refused(name: str) -> Callable[..., Any]:
    def method(self: Count, *args: Any) -> Any:
        if self.numbers.on_thread():
            self.numbers.refuse(
                f"{self.what} changes in the step, which needs it as a number; keep it outside of "
                "the step"
            )
        return getattr(self.value, name)(*args)

    return method


for _name in (
    *("int", "index", "float", "complex", "round", "trunc", "floor", "ceil", "divmod", "rdivmod"),
    *("and", "or", "xor", "lshift", "rshift", "invert", "rand", "ror", "rxor", "rlshift"),
    *("rrshift", "hash", "str", "repr", "format", "reduce_ex"),
):
    setattr(Count, f"__{_name}__", _refused(f"__{_name}__"))
