"""What the device was given to run, and why it was cut there."""

from __future__ import annotations

import os
import sys
import traceback
from dataclasses import dataclass, field
from types import TracebackType
from typing import TypedDict

from torch_tpu import _C


class DispatchNote(TypedDict):
    """What the engine notes of a program."""

    calls: list[str]
    reason: str
    known: bool
    shared: bool
    from_cache: bool
    failed: bool
    difference: str
    compile_seconds: float
    live_bytes: int
    stablehlo: str


@dataclass(frozen=True)
class Dispatched:
    """One program that was dispatched."""

    calls: tuple[str, ...]
    """The operators in it, in order, with the types of their tensors."""
    reason: str
    """Why it ends where it does."""
    known: bool
    """Whether the same operators on the same types had been met before: nothing was compiled."""
    shared: bool
    """Whether a new signature came to a program that another one has."""
    from_cache: bool
    """Whether a new program came from the compilation cache instead of the compiler."""
    failed: bool
    """Whether the compiler refused it."""
    difference: str
    """Where a new signature first differs from the nearest known; empty when nothing is near."""
    compile_seconds: float
    """What the compiler took for the program; 0 when it was not asked."""
    live_bytes: int
    """Bytes of the current device's memory that were in use before it was dispatched."""
    stablehlo: str = field(repr=False)
    """The program itself."""

    @property
    def origin(self) -> str:
        """Where the program came from, in words."""
        if self.failed:
            return "could not be compiled"
        if self.known:
            return "in memory"
        if self.shared:
            return "in memory, for another signature"
        if self.from_cache:
            return "from the cache"
        return f"compiled in {1e3 * self.compile_seconds:.0f} ms"


@dataclass
class Explanation:
    """What was dispatched inside ``with torch.tpu.explain() as explanation``."""

    programs: list[Dispatched] = field(default_factory=list)

    def __str__(self) -> str:
        lines = []
        for i, program in enumerate(self.programs):
            lines.append(
                f"program {i}: {_count(program.calls)}, {program.origin}; cut: {program.reason}"
            )
            if program.difference:
                lines.append(f"  new: {program.difference}")
            lines += [f"  {call}" for call in _folded(program.calls)]
        return "\n".join(lines)


def _count(calls: tuple[str, ...]) -> str:
    return "1 operator" if len(calls) == 1 else f"{len(calls)} operators"


def _folded(calls: tuple[str, ...]) -> list[str]:
    """The calls, equal ones in a row written once."""
    out: list[str] = []
    count = 0
    for i, call in enumerate(calls):
        count += 1
        if i + 1 == len(calls) or calls[i + 1] != call:
            out.append(call if count == 1 else f"{call}  x{count}")
            count = 0
    return out


class explain:  # noqa: N801 - called like a function
    """Note every program that is dispatched inside the block: ``with torch.tpu.explain() as e``.

    ``print(e)`` afterwards lists them, and ``e.programs`` holds them. Works in every eager mode;
    what was recorded and has not run is run when the block begins and when it ends, and leaving
    it waits for compilers. Contexts nest. What other threads dispatch meanwhile is noted too.
    """

    def __enter__(self) -> Explanation:
        _C.flush()
        _C.start_explaining()
        self._since = _C.dispatch_note_count()
        self._explanation = Explanation()
        return self._explanation

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _C.flush()
        _C.stop_explaining()
        for note in _C.dispatch_notes(self._since):
            self._explanation.programs.append(
                Dispatched(
                    calls=tuple(note["calls"]),
                    reason=note["reason"],
                    known=note["known"],
                    shared=note["shared"],
                    from_cache=note["from_cache"],
                    failed=note["failed"],
                    difference=note["difference"],
                    compile_seconds=note["compile_seconds"],
                    live_bytes=note["live_bytes"],
                    stablehlo=note["stablehlo"],
                )
            )


def user_stack() -> str:
    """The Python stack of the code that is running, without PyTorch's frames and ours."""
    import torch

    inner = (os.path.dirname(torch.__file__), os.path.dirname(os.path.dirname(__file__)))
    frames = [
        frame
        for frame in traceback.extract_stack(sys._getframe(1))
        if not frame.filename.startswith(inner)
    ]
    return "".join(traceback.format_list(frames))
