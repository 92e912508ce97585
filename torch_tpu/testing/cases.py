"""What there is to check: a case is one entry of a database under one variant and dtype."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

Status = Literal["pass", "fail", "crash", "timeout", "excluded", "not applicable"]

DTYPES: dict[str, torch.dtype] = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float32,
        torch.bfloat16,
        torch.float16,
        torch.float64,
        torch.int64,
        torch.int32,
        torch.uint8,
        torch.bool,
        torch.complex64,
        torch.complex128,
        torch.int8,
        torch.int16,
        torch.uint16,
        torch.uint32,
        torch.uint64,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
    )
}


@dataclass(frozen=True)
class Case:
    """One thing to check; its fields together are its key in the result file."""

    suite: str
    op: str
    variant: str
    dtype: str

    @property
    def key(self) -> str:
        """How the case is named in result files."""
        return f"{self.suite}/{self.op}/{self.variant}/{self.dtype}"


@dataclass
class Failure:
    """One sample that did not do what the CPU does."""

    kind: str
    """What is wrong: "value", "metadata", "error", "message", "no error"."""
    text: str
    sample: str = ""


@dataclass
class Result:
    """What became of a case: one line of the result file."""

    case: Case
    status: Status
    samples: int = 0
    left_out: int = 0
    """Samples of the database that were not run, because of `Options.samples`."""
    failures: list[Failure] = field(default_factory=list)
    failed: int = 0
    """Samples that failed; `failures` holds the first few of them."""
    fallbacks: dict[str, int] = field(default_factory=dict)
    notes: dict[str, int] = field(default_factory=dict)
    """Counts of what is worth knowing but is no failure."""
    programs: int = 0
    """Programs it compiled or loaded."""
    dumped: list[str] = field(default_factory=list)
    """Files of the programs that no case before it had, with TORCH_TPU_DUMP_STABLEHLO."""
    seconds: float = 0.0
    reason: str = ""
    """Why the case is excluded or not applicable."""


@dataclass
class Options:
    """What a suite needs to know of the command line."""

    device: str = "tpu"
    samples: int = 0
    """Most samples per case, spread over all of them; 0 is all."""
    failures_kept: int = 3


def spread(items: list[Any], count: int) -> list[Any]:
    """`count` of the items, the first and the last among them; all of them if `count` is 0."""
    if count <= 0 or len(items) <= count:
        return items
    if count == 1:
        return items[:1]
    return [items[round(i * (len(items) - 1) / (count - 1))] for i in range(count)]


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether one of the regular expressions matches the whole name; no expression matches all."""
    patterns = list(patterns)
    return not patterns or any(re.fullmatch(pattern, name) for pattern in patterns)
