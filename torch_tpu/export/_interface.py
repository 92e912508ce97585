"""What goes into a program and comes out of it."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

#: Kinds of inputs whose values belong to the model, not to a call.
STATE = frozenset({"parameter", "buffer", "constant"})


@dataclass(frozen=True)
class Value:
    """An input or output of a program: a dense row-major array."""

    #: Its name in the exported graph.
    name: str
    #: Of an input: "parameter", "buffer", "constant", "user_input", or "rng_state", the seed and
    #: the offset of the random generator. Of an output: "user_output", "loss_output",
    #: "buffer_mutation", "parameter_mutation", "user_input_mutation", "gradient_to_parameter" or
    #: "gradient_to_user_input".
    kind: str
    #: The parameter, buffer or constant that it is, or the new value of, by its name in the model;
    #: for the new value or gradient of a user input, that input's name.
    target: str | None
    shape: tuple[int, ...]
    dtype: torch.dtype

    def __str__(self) -> str:
        target = f" of {self.target}" if self.target is not None else ""
        return f"{self.name}: {dtype_name(self.dtype)}{list(self.shape)} ({self.kind}{target})"

    def to_json(self) -> dict[str, Any]:
        """In types that JSON has."""
        return {
            "name": self.name,
            "kind": self.kind,
            "target": self.target,
            "shape": list(self.shape),
            "dtype": dtype_name(self.dtype),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Value:
        """What `to_json` made."""
        return cls(
            value["name"],
            value["kind"],
            value["target"],
            tuple(value["shape"]),
            dtype_from_name(value["dtype"]),
        )


@dataclass(frozen=True)
class Leaf:
    """A place in a call's arguments or results: a tensor of the program, or a fixed value."""

    #: Which of the program's inputs or outputs it is; None for a fixed value.
    place: int | None
    value: Any = None


@dataclass(frozen=True)
class Interface:
    """The inputs and outputs of a program, and how a call's arguments and results map to them."""

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    #: (output, input): the output is what the input holds afterwards, in its memory.
    writes: tuple[tuple[int, int], ...]
    #: 32-bit random numbers that a run draws; 0 without an input "rng_state".
    random_count: int
    #: The flat arguments and results of a call.
    arguments: tuple[Leaf, ...]
    results: tuple[Leaf, ...]
    #: Their structure, as `torch.utils._pytree.treespec_dumps` writes it; None where it cannot.
    in_spec: str | None
    out_spec: str | None

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The flat arguments of a call. Raises TypeError when its structure is another one."""
        if self.in_spec is None:
            raise TypeError(
                "[aot] the structure of this program's arguments could not be written down; call "
                "it with the flat list of its inputs (run)"
            )
        expected = self._in_spec
        assert expected is not None
        names = list(expected.children()[1].context or ())
        ordered = {name: kwargs[name] for name in names if name in kwargs}
        ordered.update(kwargs)
        flat, given = pytree.tree_flatten((tuple(args), ordered))
        if given != expected:
            raise structure_error("[aot]", expected, given)
        for at, (leaf, value) in enumerate(zip(self.arguments, flat, strict=True)):
            if leaf.place is None and not is_same(leaf.value, value):
                raise TypeError(
                    f"[aot] the program was exported with {leaf.value!r} for "
                    f"{argument_names(expected)[at]}, which is now {in_words(value)}; export it "
                    "again with that value"
                )
        return flat

    @functools.cached_property
    def _in_spec(self) -> pytree.TreeSpec | None:
        return None if self.in_spec is None else pytree.treespec_loads(self.in_spec)

    def input_names(self) -> list[str]:
        """What the inputs are, for messages: "the parameter head.weight", "args[0]['mask']"."""
        names = [
            f"the {value.kind} {value.target}" if value.kind in STATE else value.name
            for value in self.inputs
        ]
        if self._in_spec is not None:
            for leaf, name in zip(self.arguments, argument_names(self._in_spec), strict=True):
                if leaf.place is not None:
                    names[leaf.place] = name
        return names

    def unflatten(self, flat: list[Any]) -> Any:
        """The results of a call in the model's structure; flat where that is not known."""
        if self.out_spec is None:
            return tuple(flat)
        return pytree.tree_unflatten(flat, pytree.treespec_loads(self.out_spec))

    def to_json(self) -> dict[str, Any]:
        """In types that JSON has."""
        return {
            "inputs": [value.to_json() for value in self.inputs],
            "outputs": [value.to_json() for value in self.outputs],
            "writes": [list(pair) for pair in self.writes],
            "random_count": self.random_count,
            "arguments": [[leaf.place, leaf.value] for leaf in self.arguments],
            "results": [[leaf.place, leaf.value] for leaf in self.results],
            "in_spec": self.in_spec,
            "out_spec": self.out_spec,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Interface:
        """What `to_json` made."""
        return cls(
            inputs=tuple(Value.from_json(v) for v in value["inputs"]),
            outputs=tuple(Value.from_json(v) for v in value["outputs"]),
            writes=tuple((output, place) for output, place in value["writes"]),
            random_count=value["random_count"],
            arguments=tuple(Leaf(place, v) for place, v in value["arguments"]),
            results=tuple(Leaf(place, v) for place, v in value["results"]),
            in_spec=value["in_spec"],
            out_spec=value["out_spec"],
        )


_NAMES_IN_A_MESSAGE = 8


def argument_names(spec: pytree.TreeSpec) -> list[str]:
    """The places of the leaves of (args, kwargs), as torch.export writes them: args[0]['mask']."""
    places = list(range(spec.num_leaves))
    try:
        paths, _ = pytree.tree_flatten_with_path(pytree.tree_unflatten(places, spec))
    except ValueError:  # a type that was registered without names for what it holds
        return [f"argument {place} of the flat ones" for place in places]
    roots = {"[0]": "args", "[1]": "kwargs"}
    return [roots[pytree.keystr(path[:1])] + pytree.keystr(path[1:]) for path, _ in paths]


def structure_error(operation: str, expected: pytree.TreeSpec, given: pytree.TreeSpec) -> TypeError:
    """Which arguments of a call are missing, and which are not expected."""
    wanted, got = argument_names(expected), argument_names(given)
    missing = [name for name in wanted if name not in set(got)]
    surplus = [name for name in got if name not in set(wanted)]
    if not missing and not surplus:  # a list for a tuple, for example
        return TypeError(
            f"{operation} expected arguments (args, kwargs) of the structure {expected}, got "
            f"{given}"
        )
    text = f"{operation} expected the arguments of the export, {_listed(wanted)}"
    if missing:
        text += f"; not given: {_listed(missing)}"
    if surplus:
        text += f"; not expected: {_listed(surplus)}"
    return TypeError(text)


def _listed(names: Sequence[str]) -> str:
    if len(names) <= _NAMES_IN_A_MESSAGE:
        return ", ".join(names) or "of which there are none"
    return f"{', '.join(names[:_NAMES_IN_A_MESSAGE])}, ... ({len(names)} in all)"


def is_same(fixed: object, given: object) -> bool:
    """Whether an argument has the value that a graph was exported with."""
    return not isinstance(given, torch.Tensor) and bool(fixed == given)


def in_words(value: object) -> str:
    """What was given, for a message: a tensor as float32[2, 4], else the value."""
    if isinstance(value, torch.Tensor):
        return f"{dtype_name(value.dtype)}{list(value.shape)}"
    return repr(value)


def dtype_name(dtype: torch.dtype) -> str:
    """E.g. "float32"."""
    return str(dtype).removeprefix("torch.")


def dtype_from_name(name: str) -> torch.dtype:
    """What `dtype_name` made."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"[export] expected the name of a dtype such as float32, got {name!r}")
    return dtype


def dump_spec(spec: pytree.TreeSpec | None) -> str | None:
    """A structure as JSON; None where it has types that cannot be written down."""
    if spec is None:
        return None
    try:
        return pytree.treespec_dumps(spec)
    except (NotImplementedError, TypeError, ValueError):
        return None
