"""Calls the compiler."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import torch

from torch_tpu import _C
from torch_tpu.aot._program import CompiledProgram, Identity, Memory
from torch_tpu.aot._run import content_of
from torch_tpu.aot._topology import DEVICE_NAMES, Topology, device_topology, libtpu, open_topology
from torch_tpu.export import StableHLOProgram, name_of, to_stablehlo
from torch_tpu.export._interface import Interface
from torch_tpu.tpu._compiler_options import flags_only

if TYPE_CHECKING:
    from torch.export import ExportedProgram

Flags = Mapping[str, bool | int | float | str]


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


class HasText(Protocol):
    """What has a StableHLO program as text: of `torch.tpu.export`, or another tool's."""

    @property
    def text(self) -> str | bytes | Callable[[], str | bytes]: ...


def compile(  # noqa: A001 - torch.tpu.aot.compile, as torch.compile
    program: ExportedProgram | torch.nn.Module | Callable[..., Any] | HasText | str | bytes,
    topology: str = "v5e:2x2",
    *,
    args: Sequence[Any] | torch.Tensor | None = None,
    kwargs: Mapping[str, Any] | None = None,
    num_replicas: int = 1,
    num_partitions: int = 1,
    flags: Flags | None = None,
) -> CompiledProgram:
    """Compiles a model for TPUs, none of which need be attached, or for this process's device.

    Args:
        program: What `torch.export.export` gave; a model or function, with example arguments; what
            `torch.tpu.export.to_stablehlo` or `torch.tpu.compile_step` gave, or anything else that
            has a StableHLO program as its ``text`` or gives it there; or the text.
        topology: The kind and number of TPUs, see `topologies`. "device" is this process's own
            device, with its own plugin; "cpu" the same, where that is a CPU's.
        args: Example arguments of a model (a tensor, if that is all), or those whose sizes an
            exported program with dynamic ones is compiled for.
        kwargs: The same by name.
        num_replicas: How many devices run the program, each with data of its own.
        num_partitions: Over how many devices the compiler partitions the program.
        flags: XLA's flags for this program, e.g. ``{"xla_tpu_enable_latency_hiding_scheduler":
            True}``.

    Raises:
        ImportError: A TPU is named, and libtpu is not installed.
        ValueError: The topology is unknown or has too few devices; the compiler does not know a
            flag, or its value.
        CompileError: The compiler refused the program.
    """
    checked = flags_only(flags or {}, "torch.tpu.aot.compile")
    source = _source_of(program, topology, args, kwargs)
    compiler = _compiler(topology, num_replicas, num_partitions)
    num_devices = num_replicas * num_partitions
    return _compile(source, topology, compiler, checked, num_devices)


def compile_stablehlo(
    text: str | bytes,
    topology: str = "v5e:2x2",
    *,
    num_replicas: int = 1,
    num_partitions: int = 1,
    flags: Flags | None = None,
) -> CompiledProgram:
    """Compiles a StableHLO program, as text or bytecode; see `compile`.

    Any number of threads may compile at once; other Python threads run meanwhile.
    """
    return compile(
        text,
        topology,
        num_replicas=num_replicas,
        num_partitions=num_partitions,
        flags=flags,
    )


@dataclass(frozen=True)
class _Source:
    """What is compiled."""

    name: str
    text: str | bytes
    # Of a program that was lowered here.
    interface: Interface | None = None
    constants: Mapping[str, torch.Tensor] = field(default_factory=dict)


# The module's name, at the beginning of its text.
_MODULE = re.compile(r"\s*module @([\w.$-]+)")


def _named_text(text: str | bytes) -> _Source:
    match = _MODULE.match(text) if isinstance(text, str) else None
    return _Source(match[1] if match else "program", text)


def _source_of(
    program: Any,
    topology: str,
    args: Sequence[Any] | torch.Tensor | None,
    kwargs: Mapping[str, Any] | None,
) -> _Source:
    if isinstance(program, str | bytes):
        return _named_text(program)
    if not isinstance(program, StableHLOProgram):
        text = None if isinstance(program, torch.nn.Module) else getattr(program, "text", None)
        text = text() if callable(text) else text
        if isinstance(text, str | bytes):
            return replace(_named_text(text), name=name_of(program))
        on_cpu = topology in DEVICE_NAMES and _C.platform_name() != "tpu"
        program = to_stablehlo(program, args, kwargs, platform="cpu" if on_cpu else "tpu")
    return _Source(program.name, program.text, program.interface, program.constants)


class _Compiler(Protocol):
    """Compiles a text; says for which devices, and what can run the result."""

    def __call__(
        self, text: str | bytes, flags: dict[str, Any]
    ) -> tuple[_C.AotProgram, Topology, Identity]: ...


def _compiler(topology: str, num_replicas: int, num_partitions: int) -> _Compiler:
    if topology in DEVICE_NAMES:
        own = device_topology(topology)
        _check_devices(own, num_replicas, num_partitions, limit=1)
        identity = Identity(**_C.device_identity())
        return lambda text, flags: (_C.compile_for_device(text, flags), own, identity)
    handle = open_topology(topology)
    absent = Topology(handle.name, handle.device_kind, handle.num_devices, handle.device_memory)
    _check_devices(absent, num_replicas, num_partitions, limit=absent.num_devices)
    return lambda text, flags: (
        handle.compile(text, num_replicas, num_partitions, flags),
        absent,
        Identity(handle.plugin, "tpu", handle.device_kind, ""),
    )


def _compile(
    source: _Source,
    topology_name: str,
    compiler: _Compiler,
    flags: dict[str, Any],
    num_devices: int,
) -> CompiledProgram:
    start = time.perf_counter()
    try:
        program, topology, identity = compiler(source.text, flags)
    except _C.AotError as error:
        _check_flags(compiler, flags, topology_name)
        raise _refused(source.text, topology_name, error) from None
    seconds = time.perf_counter() - start
    memory = program.memory()
    return CompiledProgram(
        name=source.name,
        topology=topology,
        memory=Memory(
            peak=memory["peak"] or None,
            arguments=memory["arguments"],
            outputs=memory["outputs"],
            aliased=memory["aliased"],
            temporaries=memory["temporaries"],
            generated_code=memory["generated_code"],
        ),
        costs=_costs(program),
        num_outputs=program.num_outputs(),
        compile_seconds=seconds,
        num_devices=num_devices,
        identity=identity,
        interface=source.interface,
        _executable=program.serialize(),
        # Of a model on the device "meta", whose tensors have no values, figures are all there is.
        _constants={
            target: content_of(value)
            for target, value in source.constants.items()
            if value.device.type != "meta"
        },
    )


def _costs(program: _C.AotProgram) -> dict[str, float]:
    try:
        return program.costs()
    except _C.AotError as error:
        if error.code != "UNIMPLEMENTED":
            raise
        return {}


def _check_devices(topology: Topology, num_replicas: int, num_partitions: int, limit: int) -> None:
    if num_replicas < 1 or num_partitions < 1:
        raise ValueError(
            f"[aot] expected num_replicas and num_partitions of at least 1, got {num_replicas} and "
            f"{num_partitions}"
        )
    needed = num_replicas * num_partitions
    if needed > limit:
        what = (
            f"{topology.name} has {limit}; choose a larger topology"
            if topology.name not in DEVICE_NAMES
            else f"for the topology {topology.name!r} a program runs on one"
        )
        raise ValueError(
            f"[aot] {num_replicas} replicas of {num_partitions} partitions need {needed} devices, "
            f"but {what}"
        )


# A program that nothing is wrong with.
_PLAIN = "module { func.func @main(%a: tensor<f32>) -> tensor<f32> { return %a : tensor<f32> } }"


def _check_flags(compiler: _Compiler, flags: dict[str, Any], topology: str) -> None:
    """Raise for a flag because of which the compiler refuses whatever it is given.

    One by one: the compiler's message need not name the flag.
    """

    def refusal(flags: dict[str, Any]) -> str:
        try:
            compiler(_PLAIN, flags)
        except _C.AotError as error:
            return _message(error)
        return ""

    if not flags or refusal({}):
        return
    plugin = _C.plugin_path() if topology in DEVICE_NAMES else libtpu()
    for name, value in flags.items():
        if says := refusal({name: value}):
            near = _C.flag_suggestion(plugin, name, lambda flag, text: refusal({flag: text}))
            raise ValueError(
                f"torch.tpu.aot.compile: the compiler for {topology} refuses the flag {name} = "
                f"{value!r}; flags are XLA's, by their names, with values of their types. It says: "
                f"{says}{near}"
            )


def _message(error: _C.AotError) -> str:
    return str(error).removeprefix("[compile] ").rstrip()


def _refused(text: str | bytes, topology: str, error: _C.AotError) -> CompileError:
    path = _C.keep_refused_program(text)
    where = f"was written to {path}" if path else "could not be written to the temporary directory"
    return CompileError(
        f"[aot] the compiler for {topology} refused the program, which {where}\n{_message(error)}",
        code=error.code,
        topology=topology,
        path=path,
    )
