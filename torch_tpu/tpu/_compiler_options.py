"""The options of ``torch.compile`` for the device: ours, and XLA's flags.

One table says which there are; whoever takes options asks it.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch_tpu import _C


@dataclass(frozen=True)
class Option:
    """One of our own options."""

    name: str
    type: str
    """The values it takes, in words."""
    default: str
    doc: str
    accepts: Callable[[Any], bool]


def _is_buckets(value: Any) -> bool:
    if isinstance(value, bool):
        return True
    return (
        isinstance(value, list | tuple)
        and bool(value)
        and all(type(size) is int and size > 0 for size in value)
    )


OPTIONS: Mapping[str, Option] = {
    option.name: option
    for option in (
        Option(
            "dynamic_buckets",
            "a list of positive sizes, True or False",
            "True",
            "The sizes that symbolic ones are padded to. True: powers of two and 1.5 times them; "
            "False: no padding, each size is compiled for itself.",
            _is_buckets,
        ),
        Option(
            "fuse_attention",
            "True or False",
            "True on TPUs, else False",
            "Whether attention that is written out is compiled as scaled_dot_product_attention.",
            lambda value: isinstance(value, bool),
        ),
    )
}
_XLA = "xla_"


def split(options: Mapping[str, Any], who: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Our own options among these, and XLA's flags; ``who`` begins the messages.

    Raises:
        TypeError: An option of ours has a value of another type.
        ValueError: There is no option of that name.
    """
    if not isinstance(options, Mapping):
        raise TypeError(
            f"{who}: expected options as a dict of names and values, got {type(options).__name__}"
        )
    own: dict[str, Any] = {}
    flags: dict[str, Any] = {}
    for name, value in options.items():
        option = OPTIONS.get(name)
        if option is not None:
            if not option.accepts(value):
                raise TypeError(f"{who}: {name}: expected {option.type}, got {value!r}")
            own[name] = value
        elif _is_flag(name, value):
            flags[name] = value
        else:
            raise ValueError(_unknown(name, who))
    return own, flags


def flags_only(options: Mapping[str, Any], who: str) -> dict[str, Any]:
    """XLA's flags, where nothing else makes sense."""
    own, flags = split(options, who)
    for name in own:
        raise ValueError(
            f"{who}: {name!r} is an option of torch.compile and has no meaning here; expected "
            f"XLA's flags, which begin with {_XLA!r}"
        )
    return flags


def _is_flag(name: Any, value: Any) -> bool:
    if not isinstance(name, str):
        return False
    if name.startswith(_XLA):
        return True  # it is the compiler that knows them
    if difflib.get_close_matches(name, OPTIONS, n=1, cutoff=0.7):
        return False
    try:  # a compiler may have others
        _C.check_compile_options({name: value})
    except (RuntimeError, TypeError):
        return False
    return True


def _unknown(name: Any, who: str) -> str:
    near = difflib.get_close_matches(str(name), OPTIONS, n=1, cutoff=0.6)
    guess = f"did you mean {near[0]!r}? The" if near else "the"
    known = ", ".join(f"{option.name} ({option.type})" for option in OPTIONS.values())
    return (
        f"{who}: there is no option {name!r}; {guess} options are {known}, and XLA's flags, "
        f"which begin with {_XLA!r} (torch.tpu.compiler.OPTIONS, docs/compile.md)"
    )
