"""What the compiler made of a program."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from torch_tpu.aot._topology import Topology

_FORMAT = 1
_META = "program.json"
_EXECUTABLE = "executable"


@dataclass(frozen=True)
class Memory:
    """Bytes on one device, as the compiler planned them."""

    #: The most that is in use at one time.
    peak: int
    arguments: int
    outputs: int
    #: The part of the outputs that takes over the memory of arguments.
    aliased: int
    temporaries: int
    generated_code: int


@dataclass(frozen=True)
class CompiledProgram:
    """A program compiled for a topology, with the compiler's figures for one device."""

    topology: Topology
    memory: Memory
    #: The compiler's estimates by XLA's names, e.g. "flops", "bytes accessed".
    costs: Mapping[str, float]
    num_outputs: int
    compile_seconds: float
    _executable: bytes = field(repr=False)

    @property
    def flops(self) -> float:
        """Floating-point operations of one run."""
        return self.costs.get("flops", 0.0)

    @property
    def bytes_accessed(self) -> float:
        """Bytes read and written by one run, those inside fused loops left out."""
        return self.costs.get("bytes accessed", 0.0)

    @property
    def estimated_seconds(self) -> float | None:
        """The compiler's estimate of the time of one run.

        None where it has none: libtpu counts -1 second for each part it cannot estimate (sorts,
        emulated float64), and the sum then says nothing.
        """
        seconds = self.costs.get("optimal_seconds", -1.0)
        return seconds if seconds >= 0 else None

    def serialize(self) -> bytes:
        """The executable, for a client of the same libtpu on such a TPU."""
        return self._executable

    def summary(self) -> dict[str, Any]:
        """The figures, in types that JSON has."""
        return {
            "topology": asdict(self.topology),
            "memory": asdict(self.memory),
            "flops": self.flops,
            "bytes_accessed": self.bytes_accessed,
            "estimated_seconds": self.estimated_seconds,
            "num_outputs": self.num_outputs,
            "compile_seconds": self.compile_seconds,
            "executable_bytes": len(self._executable),
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the executable and its figures to a file, for `load`."""
        meta = {
            "format": _FORMAT,
            "topology": asdict(self.topology),
            "memory": asdict(self.memory),
            "costs": dict(self.costs),
            "num_outputs": self.num_outputs,
            "compile_seconds": self.compile_seconds,
        }
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr(_META, json.dumps(meta, indent=2))
            file.writestr(_EXECUTABLE, self._executable)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> CompiledProgram:
        """Reads what `save` wrote. Needs no compiler."""
        try:
            with zipfile.ZipFile(path) as file:
                meta = json.loads(file.read(_META))
                executable = file.read(_EXECUTABLE)
        except (zipfile.BadZipFile, KeyError, json.JSONDecodeError) as error:
            raise ValueError(
                f"[aot] expected a file written by CompiledProgram.save, but {os.fspath(path)} is "
                f"not one ({error})"
            ) from error
        if meta["format"] != _FORMAT:
            raise ValueError(
                f"[aot] {os.fspath(path)} has format {meta['format']}, this version of torch_tpu "
                f"reads {_FORMAT}; compile the program again"
            )
        return cls(
            topology=Topology(**meta["topology"]),
            memory=Memory(**meta["memory"]),
            costs=meta["costs"],
            num_outputs=meta["num_outputs"],
            compile_seconds=meta["compile_seconds"],
            _executable=executable,
        )
