"""What the compiler made of a program."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
import stat
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from torch_tpu import _C
from torch_tpu.aot._figures import peak_of, scaled
from torch_tpu.aot._topology import Topology
from torch_tpu.byte_sizes import in_bytes
from torch_tpu.export._interface import Interface
from torch_tpu.replaced_file import replacing

if TYPE_CHECKING:
    from torch_tpu.aot._run import BoundProgram, State

_FORMAT = 2
_META = "program.json"
_EXECUTABLE = "executable"
_CONSTANTS = "constants/"


@dataclass(frozen=True)
class Memory:
    """Bytes on one device, as the compiler planned them."""

    #: The most that is in use at one time; None from a compiler that does not say.
    peak: int | None
    arguments: int
    outputs: int
    #: The part of the outputs that takes over the memory of arguments.
    aliased: int
    temporaries: int
    generated_code: int


@dataclass(frozen=True)
class Identity:
    """What can run an executable: the plugin that made it, on the kind of device it is for."""

    #: The plugin's build, a hash of its file.
    plugin: str
    #: "tpu", "cpu", ...
    platform: str
    #: "TPU v5 lite", ...
    device_kind: str
    #: The processor and what it can do, of a CPU's executable; else empty.
    host: str


class MismatchError(RuntimeError):
    """A program cannot run here: it was compiled for another device, or by another plugin."""


@dataclass(frozen=True, repr=False)
class CompiledProgram:
    """A program compiled for a topology, with the compiler's figures for one device."""

    #: Of the model or function, or of the module of a program given as text.
    name: str
    topology: Topology
    memory: Memory
    #: The compiler's estimates by XLA's names, e.g. "flops", "bytes accessed".
    costs: Mapping[str, float]
    num_outputs: int
    compile_seconds: float
    #: How many devices run it.
    num_devices: int
    identity: Identity
    #: What goes in and comes out; None of a program given as text, which cannot be run from here.
    interface: Interface | None
    _executable: bytes = field(repr=False)
    # The values of inputs that are in no state dict, by their targets.
    _constants: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    # Why what a file holds must not be run.
    _distrust: str | None = field(default=None, repr=False, compare=False)

    def __repr__(self) -> str:
        topology = self.topology
        figures = [f"peak memory {peak_of(self.memory.peak, topology.device_memory)}"]
        if self.memory.peak is None:
            figures = [f"temporaries {in_bytes(self.memory.temporaries)}"]
        if self.flops is not None:
            figures.append(scaled(self.flops, "FLOP"))
        if self.num_devices > 1:
            figures.append(f"{self.num_devices} devices")
        figures.append(f"executable {in_bytes(len(self._executable))}")
        return (
            f"<{type(self).__name__} {self.name!r} for {topology.name} ({topology.device_kind}): "
            f"{', '.join(figures)}>"
        )

    @property
    def flops(self) -> float | None:
        """Floating-point operations of one run; None where the compiler does not say."""
        return self.costs.get("flops")

    @property
    def bytes_accessed(self) -> float | None:
        """Bytes read and written by one run, those inside fused loops left out, or None."""
        return self.costs.get("bytes accessed")

    @property
    def estimated_seconds(self) -> float | None:
        """The compiler's estimate of the time of one run; None where it has none."""
        seconds = self.costs.get("optimal_seconds", -1.0)
        return seconds if seconds > 0 else None

    @property
    def parts_without_estimate(self) -> int:
        """How many parts of the program the compiler could not estimate the time of."""
        return math.ceil(-min(self.costs.get("optimal_seconds", 0.0), 0.0))

    @property
    def partial_seconds(self) -> float | None:
        """The estimate of the parts that have one.

        libtpu counts -1 second for each part without, so this is what is missing to whole seconds:
        right as long as the other parts take less than one.
        """
        seconds = self.costs.get("optimal_seconds", 0.0) + self.parts_without_estimate
        return seconds if seconds > 0 else None

    @property
    def unknown(self) -> dict[str, str]:
        """The figures that are None, each with the reason."""
        reasons = {}
        compiler = f"the compiler for {self.identity.platform}"
        if self.memory.peak is None:
            reasons["peak memory"] = f"{compiler} does not say what is in use at one time"
        for name, figure in (("flops", self.flops), ("bytes accessed", self.bytes_accessed)):
            if figure is None:
                reasons[name] = f"{compiler} gives no costs"
        if self.estimated_seconds is None:
            parts = self.parts_without_estimate
            reasons["estimated time"] = (
                f"{compiler} has no estimate of {parts} of the program's parts (gathers, sorts, "
                "FFTs, emulated float64, ...)"
                if parts
                else f"{compiler} estimates no times"
            )
        return reasons

    def serialize(self) -> bytes:
        """The executable, for a client of the same plugin on such a device."""
        return self._executable

    def summary(self) -> dict[str, Any]:
        """The figures, in types that JSON has."""
        return {
            "name": self.name,
            "topology": asdict(self.topology),
            "platform": self.identity.platform,
            "plugin": self.identity.plugin,
            "memory": asdict(self.memory),
            "flops": self.flops,
            "bytes_accessed": self.bytes_accessed,
            "estimated_seconds": self.estimated_seconds,
            "partial_seconds": self.partial_seconds,
            "parts_without_estimate": self.parts_without_estimate,
            "unknown": self.unknown,
            "num_inputs": None if self.interface is None else len(self.interface.inputs),
            "num_outputs": self.num_outputs,
            "num_devices": self.num_devices,
            "compile_seconds": self.compile_seconds,
            "executable_bytes": len(self._executable),
        }

    def check_device(self) -> None:
        """Raise MismatchError unless this process's device can run the program."""
        if self.num_devices != 1:
            raise MismatchError(
                f"[aot] the program is for {self.num_devices} devices at once, and only programs "
                "for one can be run from here; compile it with one replica and one partition"
            )
        here = Identity(**_C.device_identity())
        for what, wanted, found in (
            ("the platform", self.identity.platform, here.platform),
            ("the device", self.identity.device_kind, here.device_kind),
            ("the plugin's build", self.identity.plugin, here.plugin),
            ("the processor", self.identity.host, here.host),
        ):
            if wanted != found:
                raise MismatchError(
                    f"[aot] the program cannot run here: {what} it was compiled for is {wanted}, "
                    f"here it is {found}; compile the program again for this device "
                    "(topology='device')"
                )

    def run(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run the program on all its inputs, in the order of ``interface.inputs``.

        Without ``rng_state``, which comes from the device's generator. Inputs that the program
        writes are written in place. Nothing is compiled.

        Raises:
            MismatchError: It was compiled for another device or by another plugin.
            PermissionError: It is from a file that others can write; see `load`.
        """
        given = list(inputs)
        for place, value in enumerate(given):
            if not isinstance(value, torch.Tensor):
                raise self._no_tensor(place, value)
        return self._loaded(given)

    def _no_tensor(self, place: int, value: object) -> TypeError:
        names = [] if self.interface is None else self.interface.input_names()
        what = f"{names[place]} (input {place})" if place < len(names) else f"input {place}"
        return TypeError(f"{self._loaded_name}: expected {what} to be a tensor, got {value!r}")

    @property
    def _loaded_name(self) -> str:
        return f"{self.name}, compiled ahead of time"

    def bind(self, state: State) -> BoundProgram:
        """The program as a function of the model's arguments.

        Args:
            state: The model, its state dict, or the exported program: where parameters and buffers
                come from. Those on the CPU are copied to the device, once.
        """
        from torch_tpu.aot._run import bind

        return bind(self, state)

    @functools.cached_property
    def _loaded(self) -> _C.LoadedProgram:
        if self.interface is None:
            raise TypeError(
                "[aot] a program that was given as text cannot be run from here: what its inputs "
                "are is not known. Compile the model or its exported program instead"
            )
        if self._distrust is not None:
            raise PermissionError(self._distrust)
        self.check_device()
        names = self.interface.input_names()
        inputs = [v for v in self.interface.inputs if v.kind != "rng_state"]
        return _C.LoadedProgram(
            self._loaded_name,
            self._executable,
            [(v.dtype, list(v.shape)) for v in inputs],
            names[: len(inputs)],
            [(v.dtype, list(v.shape)) for v in self.interface.outputs],
            list(self.interface.writes),
            self.interface.random_count,
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the executable, its interface and figures to a file, for `load`.

        The file is the user's alone to write, whatever the umask, or `load` would not let it run.
        """
        parts = {_EXECUTABLE: self._executable}
        parts.update({_CONSTANTS + name: value for name, value in self._constants.items()})
        meta = {
            "format": _FORMAT,
            "name": self.name,
            "topology": asdict(self.topology),
            "memory": asdict(self.memory),
            "costs": dict(self.costs),
            "num_outputs": self.num_outputs,
            "compile_seconds": self.compile_seconds,
            "num_devices": self.num_devices,
            "identity": asdict(self.identity),
            "interface": None if self.interface is None else self.interface.to_json(),
            "sha256": {name: hashlib.sha256(part).hexdigest() for name, part in parts.items()},
        }
        with (
            replacing(Path(path), 0o644) as raw,
            zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as file,
        ):
            descriptor = raw.fileno()
            os.fchmod(descriptor, stat.S_IMODE(os.fstat(descriptor).st_mode) & ~0o022)
            file.writestr(_META, json.dumps(meta, indent=2))
            for name, part in parts.items():
                file.writestr(name, part)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, trusted: bool = False) -> CompiledProgram:
        """Read what `save` wrote. Needs no compiler and starts no device.

        An executable is code. The figures of any file can be read, but a program runs only if the
        file belongs to this process's user and nobody else may write to it; or if ``trusted`` says
        that its contents are known.

        Raises:
            ValueError: The file is damaged, not of `save`, or of another version.
        """
        name = os.fspath(path)
        with open(path, "rb") as raw:
            distrust = None if trusted else _distrust(name, os.fstat(raw.fileno()))
            try:
                with zipfile.ZipFile(raw) as file:
                    meta = json.loads(file.read(_META))
                    if meta["format"] != _FORMAT:
                        raise ValueError(
                            f"[aot] {name} has format {meta['format']}, this version of torch_tpu "
                            f"reads {_FORMAT}; compile the program again"
                        )
                    parts = {part: file.read(part) for part in meta["sha256"]}
            except (
                zipfile.BadZipFile,
                zipfile.LargeZipFile,
                zlib.error,
                EOFError,
                NotImplementedError,
                KeyError,
                TypeError,
                UnicodeDecodeError,
                json.JSONDecodeError,
            ) as error:
                raise _not_a_program(name, error) from error
        for part, digest in meta["sha256"].items():
            if hashlib.sha256(parts[part]).hexdigest() != digest:
                raise ValueError(
                    f"[aot] {name} is damaged: the checksum of its part {part!r} is wrong; compile "
                    "the program again"
                )
        try:
            interface = meta["interface"]
            return cls(
                name=meta.get("name", "program"),  # files of before had none
                topology=Topology(**meta["topology"]),
                memory=Memory(**meta["memory"]),
                costs=meta["costs"],
                num_outputs=meta["num_outputs"],
                compile_seconds=meta["compile_seconds"],
                num_devices=meta["num_devices"],
                identity=Identity(**meta["identity"]),
                interface=None if interface is None else Interface.from_json(interface),
                _executable=parts.pop(_EXECUTABLE),
                _constants={part.removeprefix(_CONSTANTS): value for part, value in parts.items()},
                _distrust=distrust,
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise _not_a_program(name, error) from error


def _not_a_program(name: str, error: Exception) -> ValueError:
    return ValueError(
        f"[aot] expected a file written by CompiledProgram.save, but {name} is not one ({error})"
    )


def _distrust(name: str, status: os.stat_result) -> str | None:
    """The compilation cache's rule for files whose contents run as code."""
    if status.st_uid != os.geteuid():
        wrong = f"it belongs to user {status.st_uid}, this process runs as user {os.geteuid()}"
    elif status.st_mode & 0o022:
        wrong = f"others may write to it (mode {stat.S_IMODE(status.st_mode):04o})"
    else:
        return None
    return (
        f"[aot] {name} is not run: {wrong}, and what it holds would be run as code. Make it yours "
        "alone (chown, chmod go-w), or load it with trusted=True if you know where it is from"
    )
