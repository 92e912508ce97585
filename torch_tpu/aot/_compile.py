"""Calls the compiler."""

from __future__ import annotations

import itertools
import os
import tempfile
import time
from collections.abc import Mapping

from torch_tpu import _C
from torch_tpu.aot._program import CompiledProgram, Memory
from torch_tpu.aot._topology import Topology, open_topology

_failures = itertools.count()


class CompileError(RuntimeError):
    """The compiler refused a program."""

    def __init__(self, message: str, *, code: str, topology: str, path: str | None) -> None:
        super().__init__(message)
        #: The kind of error, e.g. "RESOURCE_EXHAUSTED" for a program that does not fit the device.
        self.code = code
        #: The topology's name.
        self.topology = topology
        #: The file the program was written to; None where that was not possible.
        self.path = path


def compile_stablehlo(
    text: str | bytes,
    topology: str = "v5e:2x2",
    *,
    num_replicas: int = 1,
    num_partitions: int = 1,
    flags: Mapping[str, bool | int | float | str] | None = None,
) -> CompiledProgram:
    """Compiles a StableHLO program for TPUs, none of which need be attached.

    Args:
        text: The module, as text or bytecode.
        topology: The kind and number of TPUs; see `topologies`.
        num_replicas: How many devices run the program, each with data of its own.
        num_partitions: Over how many devices the compiler partitions the program.
        flags: XLA's flags for this program, e.g. ``{"xla_tpu_enable_latency_hiding_scheduler":
            True}``.

    Raises:
        ImportError: libtpu is not installed.
        ValueError: The topology is unknown or has too few devices.
        CompileError: The compiler refused the program.

    Any number of threads may compile at once; other Python threads run meanwhile.
    """
    compiler = open_topology(topology)
    _check_devices(compiler, num_replicas, num_partitions)
    start = time.perf_counter()
    try:
        program = compiler.compile(text, num_replicas, num_partitions, dict(flags or {}))
    except _C.AotError as error:
        raise _refused(text, topology, error) from None
    seconds = time.perf_counter() - start
    return CompiledProgram(
        topology=Topology(
            compiler.name, compiler.device_kind, compiler.num_devices, compiler.device_memory
        ),
        memory=Memory(**program.memory()),
        costs=program.costs(),
        num_outputs=program.num_outputs(),
        compile_seconds=seconds,
        _executable=program.serialize(),
    )


def _check_devices(compiler: _C.AotTopology, num_replicas: int, num_partitions: int) -> None:
    if num_replicas < 1 or num_partitions < 1:
        raise ValueError(
            f"[aot] expected num_replicas and num_partitions of at least 1, got {num_replicas} and "
            f"{num_partitions}"
        )
    if num_replicas * num_partitions > compiler.num_devices:
        raise ValueError(
            f"[aot] {num_replicas} replicas of {num_partitions} partitions need "
            f"{num_replicas * num_partitions} devices, but {compiler.name} has "
            f"{compiler.num_devices}; choose a larger topology"
        )


def _refused(text: str | bytes, topology: str, error: _C.AotError) -> CompileError:
    path = _write(text)
    where = f"was written to {path}" if path else "could not be written to the temporary directory"
    return CompileError(
        f"[aot] the compiler for {topology} refused the program, which {where}\n"
        f"{str(error).removeprefix('[compile] ').rstrip()}",
        code=error.code,
        topology=topology,
        path=path,
    )


def _write(text: str | bytes) -> str | None:
    name = f"torch_tpu_failed_aot_{os.getpid()}_{next(_failures)}.mlir"
    path = os.path.join(tempfile.gettempdir(), name)
    try:
        with open(path, "wb") as file:
            file.write(text.encode() if isinstance(text, str) else text)
    except OSError:
        return None
    return path
