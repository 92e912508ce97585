"""Numbers of a training step's program that are read on the host at every call.

An optimizer's settings are such numbers: the learning rate always, others once they were seen to
change (the momentum or betas that a ``OneCycleLR`` cycles). While the step is traced a tensor
stands for each. What the optimizer computes of them and of Python's numbers alone is computed on
the host as well, at every call and in double precision, as in eager code; what it decides by them
(``if momentum != 0``) is a condition of the program.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch
from torch.optim import Optimizer

from torch_tpu.tpu._step_counts import Count

Read = Callable[[], float]
# A setting: its parameter group, and its name.
Key = tuple[int, str]

_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "radd": operator.add,
    "sub": operator.sub,
    "rsub": lambda a, b: b - a,
    "mul": operator.mul,
    "rmul": operator.mul,
    "div": operator.truediv,
    "truediv": operator.truediv,
    "true_divide": operator.truediv,
    "rdiv": lambda a, b: b / a,
    "rtruediv": lambda a, b: b / a,
    "pow": operator.pow,
    "rpow": lambda a, b: b**a,
    "neg": operator.neg,
    "negative": operator.neg,
}
_DECISIONS: dict[str, Callable[..., Any]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "bool": bool,
}


# Functions of lists that take a tensor for a number.
_LISTS = (
    "_foreach_add",
    "_foreach_sub",
    "_foreach_pow",
    "_foreach_clamp_min",
    "_foreach_clamp_max",
)


def settings(optimizer: Optimizer) -> Iterator[tuple[dict[str, Any], str, Any]]:
    """The settings that may be operands besides the rate: floats, and tuples of floats."""
    for group in optimizer.param_groups:
        for name, value in group.items():
            several = isinstance(value, tuple) and value and all(type(v) is float for v in value)
            if name != "lr" and (type(value) is float or several):
                yield group, name, value


class Numbers:
    """The numbers of one program. ``make`` gives a tensor that stands for a new one."""

    def __init__(
        self, make: Callable[[bool], torch.Tensor], refuse: Callable[[str], NoReturn]
    ) -> None:
        self._make = make
        #: Told why the step cannot be a program, raises an exception.
        self.refuse = refuse
        self._thread = threading.get_ident()
        #: Whether those that no setting of an optimizer takes part in are double precision.
        self.double = torch.get_default_dtype() == torch.float64
        #: What gives their values, in the order in which they were made.
        self.reads: list[Read] = []
        #: Conditions: what gives an outcome, and the one that the program is made for.
        self.conditions: list[tuple[Callable[[], bool], bool]] = []
        #: The settings that are numbers here.
        self.keys: set[Key] = set()
        # As they are read, whole numbers among them.
        self._raw: list[Callable[[], Any]] = []
        self._tensors: list[torch.Tensor] = []
        self._values: list[Any] = []  # as they are in the call that is traced
        self._places: dict[int, int] = {}  # by the tensor's identity
        self._exact: set[int] = set()  # places of those that arithmetic on the host starts from
        self._known: dict[tuple[Any, ...], torch.Tensor] = {}

    @property
    def tensors(self) -> list[torch.Tensor]:
        """What stands for the numbers."""
        return self._tensors

    def add(self, read: Read, double: bool, exact: bool) -> torch.Tensor:
        """A new number; arithmetic with one that is ``exact`` is done on the host."""
        return self._add(read, read(), double, exact, as_float=True)

    def _add(
        self,
        read: Callable[[], Any],
        value: float,
        double: bool,
        exact: bool,
        as_float: bool = False,
    ) -> torch.Tensor:
        tensor = self._make(double)
        place = len(self.reads)
        self._values.append(value)
        self._places[id(tensor)] = place
        self._tensors.append(tensor)
        self.reads.append(read if as_float else lambda: float(read()))
        self._raw.append(read)
        if exact:
            self._exact.add(place)
        return tensor

    def rate(self, group: dict[str, Any], double: bool) -> torch.Tensor:
        """The learning rate of a parameter group."""
        return self.add(lambda: float(group["lr"]), double, exact=False)

    def on_thread(self) -> bool:
        """Whether this is the thread on which the step is traced."""
        return threading.get_ident() == self._thread

    def counted(self, read: Callable[[], Any], what: str) -> Any:
        """What stands for a number of Python's that the step changes."""
        value = read()
        if type(value) is int:
            return Count(self, read, value, what)
        return self._add(read, value, self.double, exact=True)

    def read_of(self, value: Any) -> Callable[[], Any] | None:
        """What gives the value, at a call, of something that stands for a number."""
        if type(value) is Count:
            return value.read
        place = self._places.get(id(value))
        return None if place is None else self._raw[place]

    def exact_read_of(self, value: Any) -> Callable[[], Any] | None:
        """The same, where it is a number of Python's in eager code as well."""
        place = self._places.get(id(value), -1)
        return self.read_of(value) if type(value) is Count or place in self._exact else None

    def computed(self, function: Callable[..., Any], operands: tuple[Any, ...], what: str) -> Any:
        """The result of a function of Python's numbers, one of which is a count."""
        if not all(map(self._is_number, operands)):
            if all(isinstance(o, (Count, torch.Tensor)) for o in operands):
                self.refuse(
                    f"{what} changes in the step, which computes with it on the device; pass it "
                    "to the step as an argument, as a tensor"
                )
            return NotImplemented
        reads = [self._read_of(operand) for operand in operands]

        def read() -> Any:
            return function(*(operand() for operand in reads))

        value = function(*(self._value_of(operand) for operand in operands))
        if not self.on_thread():
            return value
        if isinstance(value, bool):
            self.conditions.append((read, value))
            return value
        if isinstance(value, int):
            return Count(self, read, value, what)
        return self._add(read, value, self.double, exact=True)

    def setting(self, group: dict[str, Any], name: str, double: bool) -> Any:
        """Another setting of a group, with tensors in place of its floats."""
        value = group[name]
        self.keys.add((id(group), name))
        if not isinstance(value, tuple):
            return self.add(lambda: float(group[name]), double, exact=True)
        return tuple(
            self.add(lambda i=i: float(group[name][i]), double, exact=True)  # type: ignore[misc]
            for i in range(len(value))
        )

    def value(self, tensor: torch.Tensor) -> float:
        """The number that a tensor stands for, as it is in the call that is traced."""
        return self._values[self._places[id(tensor)]]

    def call(self, name: str, args: tuple[Any, ...]) -> tuple[Any] | None:
        """The result of a function of these numbers and Python's, if that is what it is."""
        if name.endswith("_") and not name.startswith("__"):  # it writes to its argument
            name = name.removesuffix("_")
            if name not in _ARITHMETIC or self._places.get(id(args[0]), -1) not in self._exact:
                return None
            # Such as `+=`; Python's numbers stay what they are.
            return self.call(name, args) or (_ARITHMETIC[name](*args),)
        name = name.strip("_")
        decides = name in _DECISIONS
        function = _DECISIONS.get(name) or _ARITHMETIC.get(name)
        if function is None or not all(map(self._is_number, args)):
            return None
        places = [self._places[id(a)] for a in args if id(a) in self._places]
        counts = any(type(a) is Count for a in args)
        if not places or not (decides or counts or self._exact.intersection(places)):
            return None
        key = (name, *(id(a) if id(a) in self._places else (type(a), a) for a in args))
        if not decides and not counts and key in self._known:
            return (self._known[key],)
        operands = [self._read_of(a) for a in args]

        def read() -> Any:
            return function(*(operand() for operand in operands))

        # While the step is traced the settings are not to be read.
        value = function(*(self._value_of(a) for a in args))
        if decides:
            self.conditions.append((read, bool(value)))
            return (bool(value),)
        double = any(self._tensors[place].dtype == torch.float64 for place in places)
        if counts:
            return (self._add(read, float(value), double, exact=True),)
        self._known[key] = self._add(read, float(value), double, exact=True)
        return (self._known[key],)

    def _is_number(self, value: Any) -> bool:
        return type(value) in (int, float, bool, Count) or id(value) in self._places

    def _value_of(self, value: Any) -> Any:
        if type(value) is Count:
            return value.value
        place = self._places.get(id(value))
        return value if place is None else self._values[place]

    def _read_of(self, value: Any) -> Read:
        return self.read_of(value) or (lambda: value)


def rewritten(
    name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[[], Any] | None:
    """The same call with tensors where PyTorch wants a number, which it would read from the device.

    None when the call is fine as it is.
    """
    base = name.removesuffix("_")
    if base in ("add", "sub", "_foreach_add", "_foreach_sub") and _on_device(kwargs.get("alpha")):
        rest = {key: value for key, value in kwargs.items() if key != "alpha"}
        alpha, (self, other, *more) = kwargs["alpha"], args
        if base.startswith("_foreach"):
            scaled: Any = torch._foreach_mul(other, alpha)
        else:
            scaled = other * alpha
        return lambda: func(self, scaled, *more, **rest)
    if base in ("addcmul", "addcdiv", "_foreach_addcmul", "_foreach_addcdiv"):
        rest = {key: value for key, value in kwargs.items() if key != "value"}
        positional = args[3] if len(args) > 3 else None
        number: Any = kwargs.get("value", positional)
        # The form with one number for each entry takes them on the host.
        if not _on_device(number) or number.dim() > 0 or len(args) < 3:
            return None
        self, first, second = args[:3]
        if base.startswith("_foreach"):
            scaled = torch._foreach_mul(first, number)
        else:
            scaled = first * number
        return lambda: func(self, scaled, second, **rest)
    if base == "_foreach_lerp" and len(args) == 3 and _on_device(args[2]):
        lerp = torch.Tensor.lerp_ if name.endswith("_") else torch.lerp
        self, end, weight = args
        return lambda: [lerp(a, b, weight.to(a.dtype)) for a, b in zip(self, end, strict=True)]
    if base == "lerp" and len(args) == 3 and _on_device(args[2]) and args[2].dim() == 0:
        weight = args[2]
        if weight.dtype != args[0].dtype:
            return lambda: func(args[0], args[1], weight.to(args[0].dtype))
    if name == "_foreach_pow" and len(args) == 2 and _on_device(args[0]):
        return lambda: [args[0] ** exponent for exponent in args[1]]
    if base in _LISTS and len(args) == 2 and _on_device(args[1]):
        method = getattr(torch.Tensor, name.removeprefix("_foreach_"))
        # The number is read before any entry is written.
        mine = any(entry is args[1] for entry in args[0])
        number = args[1].clone() if name.endswith("_") and mine else args[1]
        return lambda: [method(entry, number) for entry in args[0]]
    return None


def _on_device(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "tpu"
